#include "pollen/lcore/options.hpp"

#include <doctest/doctest.h>

#include <CLI/CLI.hpp>

#include "expect.hpp"

using namespace pollen::lcore;

namespace {

struct Command {
  LcoreOptions lcores;
  int post_list = 0;
  std::string connection = "RC";
};

// An app whose own -l and -c mean something else, as perftest's do.
Command run(std::vector<const char*> arguments) {
  Command out;
  CLI::App app;
  app.add_option("-l", out.post_list);
  app.add_option("-c", out.connection);
  add_lcore_options(app, out.lcores);
  arguments.insert(arguments.begin(), "app");
  parse_command_line(app, out.lcores, static_cast<int>(arguments.size()), arguments.data());
  return out;
}

}  // namespace

TEST_SUITE("lcore.options") {
  TEST_CASE("without a -- the short options are the app's and the long ones ours") {
    const Command command =
        run({"-l", "16", "-c", "UD", "--lcores", "0-3,8", "--realtime", "--idle", "sleep"});
    CHECK(command.post_list == 16);
    CHECK(command.connection == "UD");
    CHECK(command.lcores.lcores == CpuSet{0, 1, 2, 3, 8});
    CHECK(command.lcores.realtime);
    CHECK(!command.lcores.strict);
    CHECK(command.lcores.idle == Idle::sleep);
  }

  TEST_CASE("before a -- the short options are DPDK's, after it the app's") {
    const Command list = run({"-l", "2,70", "--strict", "--", "-l", "16"});
    CHECK(list.lcores.lcores == CpuSet{2, 70});
    CHECK(list.lcores.strict);
    CHECK(list.post_list == 16);
    const Command mask = run({"-c", "0x5", "--idle=pause", "--", "-c", "UD", "--realtime"});
    CHECK(mask.lcores.lcores == CpuSet{0, 2});
    CHECK(mask.lcores.idle == Idle::pause);
    CHECK(mask.lcores.realtime);
    CHECK(mask.connection == "UD");
    CHECK(run({"--core-mask", "f0", "--"}).lcores.lcores == CpuSet{4, 5, 6, 7});
  }

  TEST_CASE("nothing given leaves the choice to the plan") {
    const Command command = run({});
    CHECK(!command.lcores.lcores);
    CHECK(!command.lcores.idle);
    CHECK(!command.lcores.realtime);
    CHECK(!command.lcores.strict);
    CHECK(!run({"--"}).lcores.lcores);
  }

  TEST_CASE("only the first -- divides") {
    const char* argv[] = {"app", "-l", "0", "--", "a", "--", "b"};
    const SplitArguments split = split_arguments(7, argv);
    CHECK(split.eal == std::vector<std::string>{"-l", "0"});
    CHECK(split.app == std::vector<std::string>{"a", "--", "b"});
  }

  TEST_CASE("cores named twice are refused, in whatever form and place") {
    const std::string expected =
        "lcores 0-1 were already asked for. Name the cores once, by a list or by a mask";
    CHECK(has(error_of([] { run({"--lcores", "0-1", "--core-mask", "0x3"}); }), "already asked for"));
    CHECK(has(error_of([] { run({"-l", "0-1", "--", "--core-mask", "4"}); }), expected));
    CHECK(has(error_of([] { run({"-l", "0-1", "--", "--lcores", "0-1"}); }), expected));
  }

  TEST_CASE("wrong values are refused in words") {
    CHECK(has(error_of([] { run({"--lcores", "3-1"}); }), "the range 3-1 at position 1 runs backwards"));
    CHECK(has(error_of([] { run({"-c", "xyz", "--"}); }), "is not a hexadecimal digit"));
    CHECK(has(error_of([] { run({"--idle", "doze"}); }), "Choose spin, pause or sleep"));
  }

  TEST_CASE("an option that does not belong before the -- is refused with those that do") {
    const std::string error = error_of([] { run({"-n", "4", "--", "-l", "1"}); });
    CHECK(has(error, "cannot read the options before the --"));
    CHECK(has(error, "-l/--lcores, -c/--core-mask, --realtime, --strict and --idle"));
    CHECK(has(error_of([] { run({"-l", "--"}); }), "cannot read the options before the --"));
    CHECK_THROWS_AS(run({"--nonsense"}), CLI::ParseError);
  }
}
