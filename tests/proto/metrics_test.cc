#include "proto/metrics.h"

#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(Metrics, TextAndValuesAgree) {
  MetricRegistry registry;
  Counter* counter = registry.AddCounter("terrace_things_total", "Things.", {{"kind", "a"}});
  EXPECT_EQ(registry.AddCounter("terrace_things_total", "Things.", {{"kind", "b"}})->value(), 0);
  Histogram* histogram = registry.AddHistogram("terrace_wait_seconds", "Waits.", {0.1, 1});
  registry.AddCollector([](std::vector<MetricSample>* out) {
    out->push_back({"terrace_level", "Level.", false, {{"tier", "host"}}, 4});
    out->push_back({"terrace_level", "Level.", false, {{"tier", "ssd"}}, 5});
  });
  counter->Add(2);
  histogram->Observe(0.5);

  const auto values = registry.Values();
  EXPECT_EQ(values.at("terrace_things_total{kind=\"a\"}"), 2);
  EXPECT_EQ(values.at("terrace_wait_seconds_count"), 1);
  EXPECT_EQ(values.at("terrace_wait_seconds_sum"), 0.5);
  EXPECT_EQ(values.at("terrace_level{tier=\"ssd\"}"), 5);

  const std::string text = registry.ExposeText();
  EXPECT_NE(text.find("terrace_things_total{kind=\"a\"} 2"), std::string::npos) << text;
  EXPECT_NE(text.find("terrace_wait_seconds_bucket{le=\"1\"} 1"), std::string::npos) << text;
  // One HELP line per family, however many series it has.
  EXPECT_EQ(text.find("# HELP terrace_level"), text.rfind("# HELP terrace_level"));
}

}  // namespace
}  // namespace terrace
