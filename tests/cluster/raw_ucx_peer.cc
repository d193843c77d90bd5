#include "tests/cluster/raw_ucx_peer.h"

#include "cluster/piece.h"
#include "gtest/gtest.h"
#include "proto/clock.h"

namespace terrace {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

}  // namespace

RawUcxPeer::RawUcxPeer(const std::string& address)
    : address_(*ParseSocketAddress(address, /*numeric_only=*/true)) {
  ucp_config_t* config = nullptr;
  EXPECT_EQ(ucp_config_read(nullptr, nullptr, &config), UCS_OK);
  const UcxConfig owned(config);
  ucp_config_modify(config, "TLS", "tcp");
  ucp_config_modify(config, "AF_PRIO", "inet");
  ucp_config_modify(config, "CM_USE_ALL_DEVICES", "n");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  ucp_context_h context = nullptr;
  EXPECT_EQ(ucp_init(&params, config, &context), UCS_OK);
  context_.reset(context);
  ucp_worker_params_t worker_params{};
  ucp_worker_h worker = nullptr;
  EXPECT_EQ(ucp_worker_create(context, &worker_params, &worker), UCS_OK);
  worker_.reset(worker);
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB;
  handler.id = kPieceMessageId;
  handler.cb = [](void*, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
    return UCS_OK;
  };
  EXPECT_EQ(ucp_worker_set_am_recv_handler(worker, &handler), UCS_OK);
  ucp_ep_params_t endpoint{};
  endpoint.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                        UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  endpoint.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  endpoint.sockaddr = {.addr = address_.get(), .addrlen = address_.length};
  endpoint.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  endpoint.err_handler = {
      .cb = [](void* self, ucp_ep_h,
               ucs_status_t) { static_cast<RawUcxPeer*>(self)->failed_ = true; },
      .arg = this};
  EXPECT_EQ(ucp_ep_create(worker, &endpoint, &endpoint_), UCS_OK);
}

RawUcxPeer::~RawUcxPeer() {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(endpoint_, &params);
  if (!UCS_PTR_IS_PTR(request)) return;
  while (ucp_request_check_status(request) == UCS_INPROGRESS) Progress();
  ucp_request_free(request);
}

void RawUcxPeer::Send(unsigned id, ByteSpan header, ByteSpan data, uint32_t flags) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  params.flags = flags;
  const ucs_status_ptr_t request = ucp_am_send_nbx(endpoint_, id, header.data(), header.size(),
                                                   data.data(), data.size(), &params);
  EXPECT_FALSE(UCS_PTR_IS_ERR(request)) << ucs_status_string(UCS_PTR_STATUS(request));
  if (!UCS_PTR_IS_PTR(request)) return;
  const absl::Duration until = Clock::Real()->Now() + kPatience;
  while (ucp_request_check_status(request) == UCS_INPROGRESS && !failed_ &&
         Clock::Real()->Now() < until) {
    Progress();
  }
  ucp_request_free(request);
}

bool RawUcxPeer::WaitFailed() {
  const absl::Duration until = Clock::Real()->Now() + kPatience;
  while (!failed_ && Clock::Real()->Now() < until) Progress();
  return failed_;
}

}  // namespace terrace
