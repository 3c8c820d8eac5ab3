#include "control.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>

#include "pollen/net/message.hpp"
#include "pollen/net/wire.hpp"

namespace pollen::bw {

namespace {

constexpr std::chrono::seconds message_limit{5};
constexpr std::chrono::seconds stop_limit{3};  // for both sides to come to an end after Ctrl-C
constexpr std::size_t max_word_bytes = 64;

}  // namespace

void Control::tick(bool signalled) noexcept {
  if (!released() || failure_ || done_) return;
  try {
    look(signalled);
  } catch (const Error& error) {
    give_up(error);
  } catch (const std::exception& error) {
    give_up(Error(EIO, {.attempted = "control the test", .why = error.what()}));
  }
}

void Control::look(bool signalled) {
  if (signalled && !told_stop_) {
    told_stop_ = true;
    end_sending();
    tell("stop");
  }
  if (!told_finished_ && all_finished()) {
    told_finished_ = true;
    tell("finished");
  }
  while (!all_said() && net::wait_for(socket_.fd(), POLLIN, net::Deadline::after({})) == net::Wake::ready)
    hear();
  if (all_said()) {
    done_ = true;
    return request_stop_();
  }
  if (socket_.peer_closed())
    throw Error(ECONNRESET, {.attempted = "go on with the test",
                             .on = socket_.peer(),
                             .why = fmt::format("the {} is gone", name(net::other(socket_.role()))),
                             .remedy = "Its own output says why, unless it was killed"});
  if (stop_by_ && Clock::now() > *stop_by_)
    throw Error(ETIMEDOUT, {.attempted = "end the test",
                            .on = socket_.peer(),
                            .why = "what was under way did not complete in time",
                            .remedy = "Start it again; the peer may hang"});
}

void Control::tell(std::string_view what) {
  net::Writer body;
  body.text(what, max_word_bytes, "a word");
  net::send_message(socket_, net::MessageType::barrier, body.view(), net::Deadline::after(message_limit));
}

std::string Control::next_word() {
  const auto body =
      net::recv_message(socket_, net::MessageType::barrier, net::Deadline::after(message_limit));
  net::Reader in(body, "a word of the peer");
  std::string word = in.text(max_word_bytes, "the word");
  in.finish();
  return word;
}

void Control::part() {
  tell("end");
  while (next_word() != "end") {
  }
}

void Control::hear() {
  const std::string word = next_word();
  if (word == "finished")
    peer_finished_ = true;
  else if (word == "stop")
    end_sending();
  else
    throw Error(EPROTO, {.attempted = "control the test",
                         .on = socket_.peer(),
                         .why = fmt::format("the {} said '{}', which is not known",
                                            name(net::other(socket_.role())), word),
                         .remedy = "Use the same release on both sides"});
}

void Control::end_sending() {
  interrupted_ = true;
  shared_.stop_sending = true;
  if (!stop_by_) stop_by_ = Clock::now() + stop_limit;
}

bool Control::all_finished() const noexcept {
  return std::ranges::all_of(live_,
                             [](const auto& one) { return one->finished.load(std::memory_order_acquire); });
}

void Control::give_up(Error error) noexcept {
  failure_.emplace(std::move(error));
  shared_.abandoned = true;
  shared_.stop_sending = true;
  request_stop_();
}

}  // namespace pollen::bw
