#include "client/table.h"

#include <algorithm>

namespace terrace {
namespace {

size_t Width(const std::string& text) {
  return std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; });
}

}  // namespace

void Table::SetAlign(size_t column, Align align) {
  if (align_.size() <= column) align_.resize(column + 1, Align::kLeft);
  align_[column] = align;
}

std::string Table::Format() const {
  std::vector<const std::vector<std::string>*> lines;
  if (!header_.empty()) lines.push_back(&header_);
  for (const auto& row : rows_) lines.push_back(&row);
  std::vector<size_t> widths;
  for (const auto* line : lines) {
    widths.resize(std::max(widths.size(), line->size()), 0);
    for (size_t i = 0; i < line->size(); ++i) widths[i] = std::max(widths[i], Width((*line)[i]));
  }
  std::string text;
  for (const auto* line : lines) {
    std::string out;
    for (size_t i = 0; i < line->size(); ++i) {
      const std::string gap(widths[i] - Width((*line)[i]), ' ');
      const bool right = i < align_.size() && align_[i] == Align::kRight;
      if (i > 0) out += "  ";
      out += right ? gap + (*line)[i] : (*line)[i] + gap;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  }
  return text;
}

}  // namespace terrace
