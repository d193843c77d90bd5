#include "proto/flags.h"

#include <cstdio>
#include <iostream>
#include <memory>
#include <set>
#include <vector>

#include "CLI/CLI.hpp"
#include "fmt/format.h"
#include "proto/program.h"
#include "proto/units.h"
#include "proto/version.h"

namespace terrace {

struct Flags::Impl {
  std::unique_ptr<CLI::App> root;  // null in a subcommand
  CLI::App* app = nullptr;
  CLI::Option* last = nullptr;
  std::vector<std::unique_ptr<Flags>> commands;
};

namespace {

// An option whose text is parsed by one of our functions, so that its error names the value and
// what was expected.
template <typename T>
CLI::Option* AddParsed(CLI::App* app, const std::string& name, T* target, const std::string& help,
                       absl::StatusOr<T> (*parse)(std::string_view), const std::string& type,
                       const std::string& default_text) {
  CLI::callback_t assign = [target, parse, name](const CLI::results_t& results) {
    absl::StatusOr<T> value = parse(results.back());
    if (!value.ok()) throw CLI::ValidationError(name, std::string(value.status().message()));
    *target = *value;
    return true;
  };
  return app->add_option(name, assign, help)
      ->type_name(type)
      ->default_str(default_text)
      ->take_last();
}

// A key once, with one value, or a list where the flag may be repeated: CLI11 itself takes the last
// of several, and reads what is not there of an empty list.
class StrictConfig : public CLI::ConfigTOML {
 public:
  explicit StrictConfig(const CLI::App* app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    std::vector<CLI::ConfigItem> items = CLI::ConfigTOML::from_config(input);
    // A section's beginning and end; what stands in it keeps its name.
    std::erase_if(items, [](const auto& item) { return item.name == "++" || item.name == "--"; });
    std::set<std::string> seen;
    for (const CLI::ConfigItem& item : items) {
      const std::string name = item.fullname();
      const CLI::Option* option = app_->get_option_no_throw("--" + name);
      const bool list =
          option != nullptr && option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
      if (!seen.insert(name).second || item.inputs.empty() || (item.inputs.size() > 1 && !list)) {
        throw CLI::ConfigError(name + (list ? R"(: one list is needed, as in ["a", "b"])"
                                            : ": exactly one value is needed"),
                               kCode);
      }
    }
    return items;
  }

 private:
  static constexpr CLI::ExitCodes kCode = CLI::ExitCodes::ConfigError;

  const CLI::App* const app_;
};

}  // namespace

Flags::Flags(const std::string& program, const std::string& description)
    : impl_(std::make_unique<Impl>()) {
  impl_->root = std::make_unique<CLI::App>(description, program);
  impl_->app = impl_->root.get();
  impl_->app->set_version_flag("--version", std::string("terrace ") + kVersion);
  impl_->app->get_formatter()->column_width(34);
}

Flags::Flags(CLI::App* command) : impl_(std::make_unique<Impl>()) { impl_->app = command; }

Flags::~Flags() = default;

void Flags::AddBytes(const std::string& name, uint64_t* target, const std::string& help) {
  impl_->last = AddParsed<uint64_t>(impl_->app, name, target, help, &ParseBytes, "BYTES",
                                    FormatBytes(*target));
}

void Flags::AddDuration(const std::string& name, absl::Duration* target, const std::string& help) {
  impl_->last = AddParsed<absl::Duration>(impl_->app, name, target, help, &ParseDuration, "TIME",
                                          absl::FormatDuration(*target));
}

void Flags::AddUint(const std::string& name, uint64_t* target, const std::string& help,
                    uint64_t minimum, uint64_t maximum) {
  impl_->last = impl_->app->add_option(name, *target, help)
                    ->check(CLI::Range(minimum, maximum))
                    ->type_name("N")
                    ->default_str(std::to_string(*target))
                    ->take_last();
}

void Flags::AddDouble(const std::string& name, double* target, const std::string& help,
                      double minimum, double maximum) {
  impl_->last = impl_->app->add_option(name, *target, help)
                    ->check(CLI::Range(minimum, maximum))
                    ->type_name("X")
                    ->default_str(fmt::format("{}", *target))
                    ->take_last();
}

void Flags::AddString(const std::string& name, std::string* target, const std::string& help) {
  impl_->last = impl_->app->add_option(name, *target, help)
                    ->type_name("TEXT")
                    ->default_str(*target)
                    ->take_last();
}

void Flags::AddStrings(const std::string& name, std::vector<std::string>* target,
                       const std::string& help) {
  impl_->last = impl_->app->add_option(name, *target, help)->type_name("TEXT")->expected(1);
  impl_->last->allow_extra_args(false)->take_all();
}

void Flags::AddChoice(const std::string& name, std::string* target, const std::string& help,
                      const std::vector<std::string>& choices) {
  impl_->last = impl_->app->add_option(name, *target, help)
                    ->check(CLI::IsMember(choices))
                    ->default_str(*target)
                    ->take_last();
}

void Flags::AddBool(const std::string& name, bool* target, const std::string& help) {
  impl_->last = impl_->app->add_flag(name, *target, help);
}

void Flags::Required() { impl_->last->required(); }

void Flags::AddConfigFile() {
  impl_->app->set_config("--config", "", "TOML file with the same names as these flags")
      ->check(CLI::ExistingFile)
      ->type_name("FILE");
  impl_->app->allow_config_extras(CLI::config_extras_mode::error);
  impl_->app->config_formatter(std::make_shared<StrictConfig>(impl_->app));
}

void Flags::Footer(const std::string& text) { impl_->app->footer(text); }

Flags* Flags::AddCommand(const std::string& name, const std::string& help) {
  impl_->app->require_subcommand(1);
  // Flags of the program may also stand behind the command.
  CLI::App* command = impl_->app->add_subcommand(name, help)->fallthrough();
  impl_->commands.emplace_back(new Flags(command));
  return impl_->commands.back().get();
}

bool Flags::chosen() const { return impl_->app->parsed(); }

std::optional<int> Flags::Parse(int argc, const char* const* argv) {
  try {
    impl_->app->parse(argc, argv);
  } catch (const CLI::Success& help) {
    return impl_->app->exit(help, std::cout, std::cerr);
  } catch (const CLI::ParseError& error) {
    std::string what = error.what();
    constexpr std::string_view kUnknown = "INI was not able to parse ";
    if (what.starts_with(kUnknown)) {
      what = fmt::format("the configuration file has '{}', which is no flag",
                         what.substr(kUnknown.size()));
    }
    PrintTo(stderr, "{}: {}\nTry '{} --help'.\n", impl_->app->get_name(), what,
            impl_->app->get_name());
    return 2;
  }
  return std::nullopt;
}

namespace {

void CompleteCommand(const CLI::App& app, const std::string& path, std::string* cases) {
  std::string words;
  for (const CLI::App* command : app.get_subcommands(nullptr)) words += command->get_name() + " ";
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words += "--" + name + " ";
  }
  *cases += fmt::format("    '{}') words='{}' ;;\n", path, words);
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    CompleteCommand(*command, path + " " + command->get_name(), cases);
  }
}

}  // namespace

std::string Flags::BashCompletion() const {
  const std::string program = impl_->app->get_name();
  std::string cases;
  CompleteCommand(*impl_->app, program, &cases);
  std::string function = "_" + program;
  for (char& c : function) {
    if (c == '-') c = '_';
  }
  // The path is the program and the words that are no options: an option's value may slip in,
  // then the longest known path in front of it decides.
  return fmt::format(R"({0}() {{
  local words='' path='{1}' word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in -*) ;; *) path="$path $word" ;; esac
  done
  while [ -z "$words" ] && [ -n "$path" ]; do
    case "$path" in
{2}    esac
    case "$path" in *' '*) path="${{path% *}}" ;; *) path='' ;; esac
  done
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F {0} {1}
)",
                     function, program, cases);
}

}  // namespace terrace
