// A capture file that Wireshark reads: Ethernet frames with nanosecond times.
//
// Ownership: the writer owns the file. Thread rules: write() from any thread, under a mutex and with
// stdio behind it, so only for runs that capture. Errors: the constructor, flush() and close() throw
// Error; write() remembers that it failed, and the next flush() or close() says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

struct pcap;
struct pcap_dumper;

namespace pollen::soft {

class PcapWriter {
 public:
  // Replaces what is at `path`.
  explicit PcapWriter(std::string path);
  ~PcapWriter();  // closes; a failure is logged
  PcapWriter(const PcapWriter&) = delete;
  PcapWriter& operator=(const PcapWriter&) = delete;

  // `now_realtime_ns`: since 1970. After a failure or close() frames are no longer written.
  void write(std::uint64_t now_realtime_ns, std::span<const std::byte> frame) noexcept;
  void flush();
  void close();

  const std::string& path() const noexcept { return path_; }
  std::uint64_t frames() const noexcept;  // that were written

 private:
  struct Closer {
    void operator()(pcap* handle) const noexcept;
    void operator()(pcap_dumper* dumper) const noexcept;
  };

  int write_pending() noexcept;  // an errno value, or 0
  [[noreturn]] void fail(int error, const char* attempted) const;

  const std::string path_;
  mutable std::mutex mutex_;
  std::unique_ptr<pcap, Closer> handle_;
  std::unique_ptr<pcap_dumper, Closer> dumper_;
  std::uint64_t frames_ = 0;
  int error_ = 0;  // of the first write that failed
};

}  // namespace pollen::soft
