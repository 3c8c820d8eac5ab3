#include "pollen/drivers/soft/pcap.hpp"

#include <fmt/format.h>
#include <pcap/pcap.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "pollen/base/error.hpp"

namespace pollen::soft {
namespace {

constexpr int max_captured_bytes = 65535;

std::string remedy_for(int error) {
  switch (error) {
    case ENOENT:
      return "Create the directory first, or name another file";
    case EACCES:
    case EPERM:
    case EROFS:
      return "Name a file in a directory that you may write to";
    case EISDIR:
      return "Name a file, not a directory";
    case ENOSPC:
    case EDQUOT:
      return "Free some space, or name a file on another file system";
    default:
      return "Name another file";
  }
}

}  // namespace

void PcapWriter::Closer::operator()(pcap* handle) const noexcept { pcap_close(handle); }
void PcapWriter::Closer::operator()(pcap_dumper* dumper) const noexcept { pcap_dump_close(dumper); }

PcapWriter::PcapWriter(std::string path) : path_(std::move(path)) {
  handle_.reset(
      pcap_open_dead_with_tstamp_precision(DLT_EN10MB, max_captured_bytes, PCAP_TSTAMP_PRECISION_NANO));
  if (!handle_) fail(ENOMEM, "create a capture");
  std::FILE* file = std::fopen(path_.c_str(), "wbe");
  if (file == nullptr) fail(errno, "create the capture file");
  errno = 0;
  dumper_.reset(pcap_dump_fopen(handle_.get(), file));
  if (!dumper_) {  // libpcap has closed the file
    throw Error(errno != 0 ? errno : EIO, {.attempted = "begin the capture file",
                                           .on = path_,
                                           .why = pcap_geterr(handle_.get()),
                                           .remedy = "Name another file"});
  }
}

PcapWriter::~PcapWriter() {
  try {
    close();
  } catch (const std::exception& error) {
    spdlog::warn("{}", error.what());
  }
}

void PcapWriter::write(std::uint64_t now_realtime_ns, std::span<const std::byte> frame) noexcept {
  pcap_pkthdr header{};
  header.ts.tv_sec = static_cast<time_t>(now_realtime_ns / 1'000'000'000);
  header.ts.tv_usec = static_cast<suseconds_t>(now_realtime_ns % 1'000'000'000);  // nanoseconds here
  header.len = static_cast<bpf_u_int32>(frame.size());
  header.caplen = std::min<bpf_u_int32>(header.len, max_captured_bytes);

  const std::lock_guard lock(mutex_);
  if (!dumper_ || error_ != 0) return;
  errno = 0;
  pcap_dump(reinterpret_cast<u_char*>(dumper_.get()), &header, reinterpret_cast<const u_char*>(frame.data()));
  if (std::ferror(pcap_dump_file(dumper_.get())) != 0)
    error_ = errno != 0 ? errno : EIO;
  else
    ++frames_;
}

void PcapWriter::flush() {
  const std::lock_guard lock(mutex_);
  if (const int error = write_pending(); error != 0) fail(error, "write the capture file");
}

void PcapWriter::close() {
  const std::lock_guard lock(mutex_);
  if (!dumper_) return;
  const int error = write_pending();  // closing has no result of its own
  dumper_.reset();
  if (error != 0) fail(error, "write the capture file");
}

int PcapWriter::write_pending() noexcept {
  if (dumper_ && error_ == 0 && pcap_dump_flush(dumper_.get()) != 0) error_ = errno != 0 ? errno : EIO;
  return error_;
}

std::uint64_t PcapWriter::frames() const noexcept {
  const std::lock_guard lock(mutex_);
  return frames_;
}

void PcapWriter::fail(int error, const char* attempted) const {
  std::string remedy = remedy_for(error);
  throw Error(error, {.attempted = attempted, .on = path_, .remedy = std::move(remedy)});
}

}  // namespace pollen::soft
