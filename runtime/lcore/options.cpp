#include "pollen/lcore/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>

#include "pollen/base/error.hpp"

namespace pollen::lcore {

namespace {

void set_lcores(LcoreOptions& options, CpuSet cpus) {
  if (options.lcores) {
    throw Error(EINVAL, {.attempted = fmt::format("use {}", lcores_text(cpus)),
                         .why = fmt::format("{} were already asked for", lcores_text(*options.lcores)),
                         .remedy = "Name the cores once, by a list or by a mask"});
  }
  options.lcores = std::move(cpus);
}

void set_idle(LcoreOptions& options, const std::string& name) {
  options.idle = parse_idle(name);
  if (!options.idle) {
    throw Error(EINVAL, {.attempted = fmt::format("use the idle policy '{}'", name),
                         .why = "there is none of that name",
                         .remedy = "Choose spin, pause or sleep"});
  }
}

void add_options(CLI::App& app, LcoreOptions& options, const std::string& list_names,
                 const std::string& mask_names) {
  const std::string group = "Lcores";
  app.add_option_function<std::string>(
         list_names, [&options](const std::string& text) { set_lcores(options, CpuSet::parse_list(text)); },
         "Cores to run workers on, like 0-3,8 (default: one per physical core of the device's NUMA node)")
      ->type_name("LIST")
      ->group(group);
  app.add_option_function<std::string>(
         mask_names, [&options](const std::string& text) { set_lcores(options, CpuSet::parse_mask(text)); },
         "The same as a hexadecimal mask, like 0xf")
      ->type_name("MASK")
      ->group(group);
  app.add_flag("--realtime", options.realtime, "Run workers under SCHED_FIFO")->group(group);
  app.add_flag("--strict", options.strict, "Refuse to start where lcores would be disturbed")->group(group);
  app.add_option_function<std::string>(
         "--idle", [&options](const std::string& name) { set_idle(options, name); },
         "What a worker does while there is nothing to do: spin, pause or sleep "
         "(default: spin on cores set aside for it, else pause)")
      ->type_name("POLICY")
      ->group(group);
}

void parse_with(CLI::App& app, std::vector<std::string> arguments) {
  std::ranges::reverse(arguments);  // as CLI11 wants them
  app.parse(std::move(arguments));
}

}  // namespace

SplitArguments split_arguments(int argc, const char* const* argv) {
  SplitArguments out;
  for (int i = 1; i < argc; ++i) out.app.emplace_back(argv[i]);
  const auto dashes = std::ranges::find(out.app, "--");
  if (dashes != out.app.end()) {
    out.eal.assign(out.app.begin(), dashes);
    out.app.erase(out.app.begin(), dashes + 1);
  }
  return out;
}

LcoreOptions parse_eal(const std::vector<std::string>& arguments) {
  LcoreOptions options;
  CLI::App app;
  app.set_help_flag();
  add_options(app, options, "-l,--lcores", "-c,--core-mask");
  try {
    parse_with(app, arguments);
  } catch (const CLI::ParseError& error) {
    throw Error(
        EINVAL,
        {.attempted = "read the options before the --",
         .why = error.what(),
         .remedy = "There go -l/--lcores, -c/--core-mask, --realtime, --strict and --idle; the app's own "
                   "come after it"});
  }
  return options;
}

void add_lcore_options(CLI::App& app, LcoreOptions& options) {
  add_options(app, options, "--lcores", "--core-mask");
}

void parse_command_line(CLI::App& app, LcoreOptions& options, int argc, const char* const* argv) {
  SplitArguments split = split_arguments(argc, argv);
  options = parse_eal(split.eal);
  parse_with(app, std::move(split.app));
}

}  // namespace pollen::lcore
