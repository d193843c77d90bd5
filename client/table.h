// Tables for people: aligned columns on a terminal.
#pragma once

#include <string>
#include <vector>

namespace terrace {

class Table {
 public:
  enum class Align { kLeft, kRight };

  // With an empty header nothing but the rows is printed.
  explicit Table(std::vector<std::string> header = {}) : header_(std::move(header)) {}

  // Text to the left, numbers to the right; a column holds one or the other.
  void SetAlign(size_t column, Align align);
  // Rows may be shorter than the header, and are never longer.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Columns two spaces apart, no spaces at the ends of lines. Widths count UTF-8 characters.
  std::string Format() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<Align> align_;
};

}  // namespace terrace
