// softmlx5: runs a program with the software NIC in place of the host's RDMA devices, through the
// real libibverbs and libmlx5. It sets the environment and becomes the program.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "pollen/base/error.hpp"
#include "pollen/drivers/soft/faults.hpp"

namespace {

using pollen::Error;

std::string own_directory() {
  char path[4096];
  const ssize_t bytes = readlink("/proc/self/exe", path, sizeof path);
  if (bytes <= 0) throw Error(errno, {.attempted = "find softmlx5's own place", .on = "/proc/self/exe"});
  const std::string self(path, static_cast<std::size_t>(bytes));
  return self.substr(0, self.rfind('/'));
}

std::string find_library() {
  if (const char* set = std::getenv("SOFTMLX5_LIBRARY"); set != nullptr && *set != 0) {
    if (access(set, R_OK) == 0) return set;
    throw Error(errno, {.attempted = "use the library that SOFTMLX5_LIBRARY names", .on = set});
  }
  const std::string dir = own_directory();
  for (const std::string& path : {dir + "/libsoftmlx5.so", dir + "/" + SOFTMLX5_LIBRARY_FROM_BINDIR})
    if (access(path.c_str(), R_OK) == 0) return path;
  throw Error(ENOENT,
              {.attempted = "find libsoftmlx5.so",
               .why = fmt::format("it is neither in {} nor in {}/{}", dir, dir, SOFTMLX5_LIBRARY_FROM_BINDIR),
               .remedy = "Set SOFTMLX5_LIBRARY to where it is"});
}

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const char* set = std::getenv("PATH");
  std::string path = set == nullptr ? "/usr/bin:/bin" : set;
  for (std::size_t from = 0; from <= path.size();) {
    const std::size_t to = std::min(path.find(':', from), path.size());
    const std::string file = path.substr(from, to - from) + "/" + name;
    if (access(file.c_str(), X_OK) == 0) return file;
    from = to + 1;
  }
  throw Error(ENOENT, {.attempted = "run " + name,
                       .why = "no directory of PATH has it",
                       .remedy = "Install it (perftest, ibverbs-utils, rdmacm-utils), or give its path"});
}

// What the loader would ignore the library for, without a word.
void check_program(const std::string& file) {
  struct stat info {};
  if (stat(file.c_str(), &info) != 0) throw Error(errno, {.attempted = "run a program", .on = file});
  if ((info.st_mode & (S_ISUID | S_ISGID)) != 0 && geteuid() != 0)
    throw Error(EPERM, {.attempted = "put the software NIC under " + file,
                        .why = "it is set-user-ID or set-group-ID, and the system then loads no such library",
                        .remedy = "Run a copy of it without that bit"});
  Elf64_Ehdr header{};
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  bool dynamic = true;
  if (pread(fd, &header, sizeof header, 0) == sizeof header &&
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) == 0) {
    dynamic = false;
    for (unsigned i = 0; i < header.e_phnum && !dynamic; ++i) {
      Elf64_Phdr segment{};
      const auto at = static_cast<off_t>(header.e_phoff + i * header.e_phentsize);
      if (pread(fd, &segment, sizeof segment, at) == sizeof segment) dynamic = segment.p_type == PT_INTERP;
    }
  }
  close(fd);
  if (!dynamic)
    throw Error(ENOEXEC, {.attempted = "put the software NIC under " + file,
                          .why = "it is statically linked, and loads no libraries",
                          .remedy = "Link it dynamically"});
}

void check_libmlx5() {
  if (dlopen("libmlx5.so.1", RTLD_LAZY) != nullptr) return;
  throw Error(ENOENT,
              {.attempted = "load libmlx5.so.1",
               .why = dlerror(),
               .remedy = "Install rdma-core's providers (Debian: apt-get install ibverbs-providers)"});
}

int run(int argc, char** argv) {
  CLI::App app(
      "Runs a program with the software NIC in place of the host's RDMA devices: it sees one device,\n"
      "mlx5_0, through the real libibverbs and libmlx5. Programs of the same user on this host reach each "
      "other.",
      "softmlx5");
  app.footer("COMMAND and its arguments follow the options, as in: softmlx5 ib_send_bw -d mlx5_0");
  unsigned device = 0;
  std::string faults;
  std::string pcap;
  bool log = false;
  app.add_option("--device", device, "Which of the software NIC's devices mlx5_0 is")
      ->check(CLI::Range(0, 7));
  app.add_option("--faults", faults, "Seeded faults: loss=P,dup=P,reorder=P,delay=TIME,corrupt=P,seed=N");
  app.add_option("--pcap", pcap,
                 "Write the packets that are sent to this file; %p stands for the process's number");
  app.add_flag("--log", log, "Say on stderr why the device refuses a command");
  app.prefix_command();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  std::vector<std::string> command = app.remaining();
  if (!command.empty() && command.front() == "--") command.erase(command.begin());
  if (command.empty()) {
    std::fputs(app.help().c_str(), stderr);
    return 2;
  }
  if (!faults.empty()) {
    pollen::soft::parse_faults(faults);
    setenv("SOFTMLX5_FAULTS", faults.c_str(), 1);
  }
  if (!pcap.empty()) setenv("SOFTMLX5_PCAP", pcap.c_str(), 1);
  if (app.count("--device") != 0) setenv("SOFTMLX5_DEVICE", std::to_string(device).c_str(), 1);
  if (log) setenv("SOFTMLX5_LOG", "1", 1);

  const std::string library = find_library();
  const std::string program = find_program(command.front());
  check_program(program);
  check_libmlx5();
  const char* before = std::getenv("LD_PRELOAD");
  setenv("LD_PRELOAD",
         before == nullptr || *before == 0 ? library.c_str() : fmt::format("{}:{}", library, before).c_str(),
         1);
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  throw Error(errno, {.attempted = "run a program", .on = program});
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "softmlx5: {}\n", error.what());
    return 1;
  }
}
