// scrub: whether the blocks of the ssd tier are what they should be.
#include <unistd.h>

#include "client/terracectl/commands.h"
#include "fmt/format.h"
#include "proto/clock.h"
#include "proto/program.h"
#include "proto/status.h"
#include "proto/units.h"

namespace terrace::ctl {
namespace {

namespace wire = control::v1;

std::string Describe(const wire::ScrubReply& reply, absl::Duration took) {
  const double seconds = std::max(absl::ToDoubleSeconds(took), 1e-3);
  return fmt::format(
      "{} of {} blocks, {}, {}/s, {} corrupt", FormatCount(reply.blocks()),
      FormatCount(reply.blocks_total()), FormatBytes(reply.bytes()),
      FormatBytes(static_cast<uint64_t>(static_cast<double>(reply.bytes()) / seconds)),
      FormatCount(reply.corrupt()));
}

absl::StatusOr<int> Scrub(const GlobalOptions& options, uint64_t bytes_per_second) {
  TERRACE_ASSIGN_OR_RETURN(Connection connection, Connection::Open(options));
  wire::ScrubRequest request;
  request.set_bytes_per_second(bytes_per_second);
  grpc::ClientContext context;
  Authorize(connection.dialed(), &context);
  const absl::Duration begin = Clock::Real()->Now();
  auto reader = connection.stub()->Scrub(&context, request);
  const bool terminal = isatty(STDERR_FILENO) == 1;
  wire::ScrubReply reply;
  while (reader->Read(&reply)) {
    if (options.json) {
      PrintTo(stdout, "{}", ToJson(reply));
    } else if (terminal) {
      PrintTo(stderr, "\r{}\x1b[K", Describe(reply, Clock::Real()->Now() - begin));
    }
  }
  if (terminal && !options.json) PrintTo(stderr, "\r\x1b[K");
  TERRACE_RETURN_IF_ERROR(FromGrpc(reader->Finish(), connection.address()));
  if (!reply.done()) {
    return absl::UnavailableError(fmt::format("the node at {} broke off", connection.address()));
  }
  if (!options.json) {
    PrintTo(stdout, "scrubbed {}\n", Describe(reply, Clock::Real()->Now() - begin));
    if (reply.unread() > 0) {
      PrintTo(stdout, "{} blocks could not be read, or left meanwhile\n",
              FormatCount(reply.unread()));
    }
  }
  return reply.corrupt() == 0 ? 0 : 1;
}

}  // namespace

void AddScrubCommand(Flags* root, GlobalOptions* options, std::vector<Command>* commands) {
  auto bytes_per_second = std::make_shared<uint64_t>(0);
  Flags* flags = root->AddCommand("scrub",
                                  "read and verify every block of the ssd tier; exit code 1 where "
                                  "one was corrupt (it is gone)");
  flags->AddBytes("--rate", bytes_per_second.get(), "bytes per second at most; 0: no bound");
  commands->push_back({flags, [=] { return Scrub(*options, *bytes_per_second); }});
}

}  // namespace terrace::ctl
