// Metrics in the Prometheus data model. An object registers its own metrics and updates them;
// updates are lock-free and thread-safe. Names: terrace_<what>_<unit>[_total].
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace terrace {

using MetricLabels = std::map<std::string, std::string>;

class Counter {
 public:
  virtual ~Counter() = default;
  virtual void Add(double amount = 1) = 0;  // amount >= 0
  virtual double value() const = 0;
};

class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void Observe(double value) = 0;
};

// A value read when somebody asks.
struct MetricSample {
  std::string name;
  std::string help;
  bool counter = false;  // else a gauge
  MetricLabels labels;
  double value = 0;
};

class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();

  // Owned by the registry, valid as long as it. The same name and labels give the same metric.
  Counter* AddCounter(const std::string& name, const std::string& help,
                      const MetricLabels& labels = {});
  // `bounds` ascending; an overflow bucket is added.
  Histogram* AddHistogram(const std::string& name, const std::string& help,
                          const std::vector<double>& bounds, const MetricLabels& labels = {});
  // `collect` runs on the scraping thread each time somebody asks; it must outlive the registry.
  void AddCollector(std::function<void(std::vector<MetricSample>*)> collect);

  // Text exposition format 0.0.4.
  std::string ExposeText() const;
  // name{label="value"} -> value; histograms as _sum and _count.
  std::map<std::string, double> Values() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
