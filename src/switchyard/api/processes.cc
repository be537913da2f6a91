// SPDX-License-Identifier: Apache-2.0
#include "switchyard/api/processes.h"

#include <exception>
#include <string_view>

#include "switchyard/base/check.h"
#include "switchyard/base/text.h"
#include "switchyard/comm/agreement.h"
#include "switchyard/comm/mpi_group.h"
#include "switchyard/resolve/probe.h"

namespace switchyard {

int launched_rank() { return resolve::launched().rank; }
int launched_processes() { return resolve::launched().processes; }

Processes::Processes() {
  if (launched_processes() == 1) return;
  session_ = std::make_unique<comm::MpiSession>();
  rank_ = session_->rank();
  size_ = session_->size();
}

Processes::~Processes() = default;

namespace {

constexpr std::string_view kStep = "a common step", kAgreement = "the comparison of what is run",
                           kFormation = "the formation of a group", kEnd = "the end";

/// How long the others are waited for. A process whose switches cannot be read has that to tell
/// them, and so needs a budget all the same.
std::chrono::milliseconds budget() {
  try {
    return comm::deadlines_of(resolve::environment()).warm_up;
  } catch (const Error&) {
    return comm::Deadlines().warm_up;
  }
}

}  // namespace

/// What a process brings to a meeting: where it is, how it fares, and what is to be compared.
struct Processes::Meeting {
  std::string_view place = kStep;
  Ending ending;
  std::string values;

  std::string sent() const {
    return cat(place, '\n', ending.status, ' ', ending.text.size(), ' ', ending.text, values);
  }
  static Meeting of(const std::string& text) {
    Meeting out;
    for (std::string_view place : {kStep, kAgreement, kFormation, kEnd})
      if (text.starts_with(cat(place, '\n'))) out.place = place;
    const std::size_t status = text.find('\n') + 1, length = text.find(' ', status) + 1,
                      told = text.find(' ', length) + 1;
    ensure(status != 0 && length != 0 && told != 0, "a meeting of processes: a text lacks parts");
    const std::size_t size = std::stoul(text.substr(length));
    out.ending = {std::stoi(text.substr(status)), text.substr(told, size), out.place == kEnd};
    out.values = text.substr(told + size);
    return out;
  }
};

std::vector<Processes::Meeting> Processes::meet(const Meeting& mine) {
  if (!session_) return {mine};
  std::vector<Meeting> out;
  for (const std::string& theirs : session_->all_gather(mine.sent(), budget())) {
    out.push_back(Meeting::of(theirs));
    left_ |= out.back().ending.ended;
  }
  return out;
}

/// A meeting of processes that go on behind it, all from the same place.
std::vector<Processes::Meeting> Processes::meet_here(const Meeting& mine) {
  std::vector<Meeting> all = meet(mine);
  for (std::size_t r = 0; r < all.size(); ++r)  // who failed, before who is only elsewhere
    require(all[r].ending.text.empty(), "rank ", r, ": ", all[r].ending.text);
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Meeting& m = all[r];
    require(m.place == mine.place, "rank ", r, " is at ", m.place, " where rank ", rank_, " is at ",
            mine.place, "; start all processes with the same words");
  }
  return all;
}

std::vector<Processes::Ending> Processes::end(const Ending& mine) {
  if (left_) return {mine};
  std::vector<Ending> out;
  for (Meeting& m : meet({kEnd, mine, ""})) out.push_back(std::move(m.ending));
  return out;
}

void Processes::settle(const std::exception_ptr& failure) {
  Meeting mine;
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    mine.ending.text = *e.what() != 0 ? e.what() : "failed without a text";
  }
  if (!failure) {
    meet_here(mine);
    return;
  }
  meet(mine);
  std::rethrow_exception(failure);
}

void Processes::agree(const std::vector<Agreed>& mine) {
  std::vector<comm::Agreed> values;
  for (const Agreed& v : mine) {
    values.push_back({v.name, v.value});
    for (char& c : values.back().value)  // a caller's own words may hold anything
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  std::vector<std::string> texts;
  for (Meeting& m : meet_here({kAgreement, {}, comm::agreed_text(values)}))
    texts.push_back(std::move(m.values));
  comm::compare_agreed(texts, kAgreement);
}

comm::Group Processes::form_group() {
  comm::Deadlines deadlines;
  Meeting mine{kFormation, {}, ""};
  try {
    deadlines = comm::deadlines_of(resolve::environment());
  } catch (const UsageError& e) {  // which the others are to hear
    if (!session_) throw;
    mine.ending.text = e.what();
    meet(mine);
    throw;
  }
  if (!session_) return std::move(comm::make_thread_groups(1, deadlines)[0]);
  meet_here(mine);  // nobody comes late, or not at all
  return session_->form_group(deadlines);
}

}  // namespace switchyard
