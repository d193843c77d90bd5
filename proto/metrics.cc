#include "proto/metrics.h"

#include <deque>

#include "fmt/format.h"
#include "prometheus/counter.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "proto/mutex.h"

namespace terrace {
namespace {

class CounterImpl : public Counter {
 public:
  explicit CounterImpl(prometheus::Counter* counter) : counter_(counter) {}
  void Add(double amount) override { counter_->Increment(amount); }
  double value() const override { return counter_->Value(); }

 private:
  prometheus::Counter* const counter_;
};

class HistogramImpl : public Histogram {
 public:
  explicit HistogramImpl(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void Observe(double value) override { histogram_->Observe(value); }

 private:
  prometheus::Histogram* const histogram_;
};

std::string SeriesName(const std::string& name,
                       const std::vector<prometheus::ClientMetric::Label>& labels) {
  if (labels.empty()) return name;
  std::string text = name + "{";
  for (const auto& label : labels) {
    if (text.back() != '{') text += ",";
    text += fmt::format("{}=\"{}\"", label.name, label.value);
  }
  return text + "}";
}

prometheus::MetricFamily ToFamily(const MetricSample& sample) {
  prometheus::MetricFamily family;
  family.name = sample.name;
  family.help = sample.help;
  family.type = sample.counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
  prometheus::ClientMetric metric;
  for (const auto& [name, value] : sample.labels) metric.label.push_back({name, value});
  metric.counter.value = metric.gauge.value = sample.value;
  family.metric.push_back(std::move(metric));
  return family;
}

}  // namespace

struct MetricRegistry::Impl {
  prometheus::Registry registry;
  mutable Mutex mutex;
  std::deque<CounterImpl> counters ABSL_GUARDED_BY(mutex);
  std::deque<HistogramImpl> histograms ABSL_GUARDED_BY(mutex);
  std::vector<std::function<void(std::vector<MetricSample>*)>> collectors ABSL_GUARDED_BY(mutex);

  std::vector<prometheus::MetricFamily> Collect() const {
    std::vector<prometheus::MetricFamily> families = registry.Collect();
    std::vector<MetricSample> samples;
    {
      MutexLock lock(&mutex);
      for (const auto& collect : collectors) collect(&samples);
    }
    for (const MetricSample& sample : samples) {
      // Samples of one name form one family, as the text format asks.
      if (!families.empty() && families.back().name == sample.name) {
        families.back().metric.push_back(ToFamily(sample).metric.front());
      } else {
        families.push_back(ToFamily(sample));
      }
    }
    return families;
  }
};

MetricRegistry::MetricRegistry() : impl_(std::make_unique<Impl>()) {}
MetricRegistry::~MetricRegistry() = default;

Counter* MetricRegistry::AddCounter(const std::string& name, const std::string& help,
                                    const MetricLabels& labels) {
  auto& family = prometheus::BuildCounter().Name(name).Help(help).Register(impl_->registry);
  MutexLock lock(&impl_->mutex);
  return &impl_->counters.emplace_back(&family.Add(labels));
}

Histogram* MetricRegistry::AddHistogram(const std::string& name, const std::string& help,
                                        const std::vector<double>& bounds,
                                        const MetricLabels& labels) {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(impl_->registry);
  MutexLock lock(&impl_->mutex);
  return &impl_->histograms.emplace_back(&family.Add(labels, bounds));
}

void MetricRegistry::AddCollector(std::function<void(std::vector<MetricSample>*)> collect) {
  MutexLock lock(&impl_->mutex);
  impl_->collectors.push_back(std::move(collect));
}

std::string MetricRegistry::ExposeText() const {
  return prometheus::TextSerializer().Serialize(impl_->Collect());
}

std::map<std::string, double> MetricRegistry::Values() const {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : impl_->Collect()) {
    for (const prometheus::ClientMetric& metric : family.metric) {
      const std::string series = SeriesName(family.name, metric.label);
      switch (family.type) {
        case prometheus::MetricType::Counter:
          values[series] = metric.counter.value;
          break;
        case prometheus::MetricType::Histogram:
          values[SeriesName(family.name + "_sum", metric.label)] = metric.histogram.sample_sum;
          values[SeriesName(family.name + "_count", metric.label)] =
              static_cast<double>(metric.histogram.sample_count);
          break;
        default:
          values[series] = metric.gauge.value;
      }
    }
  }
  return values;
}

}  // namespace terrace
