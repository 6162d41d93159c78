#include "_cgo_export.h"
#include "call.h"

void pwdrv_event_destroy(const PJRT_Api* api, PJRT_Event* event) {
  PWDRV_COUNT(events, -1);
  PWDRV_ARGS(PJRT_Event_Destroy);
  args.event = event;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Event_Destroy);
  pwdrv_error_destroy(api, status.error);
}

pwdrv_status pwdrv_event_settle(const PJRT_Api* api, PJRT_Event* event, bool* fired, PJRT_Error** error) {
  *fired = false;
  *error = NULL;
  {
    PWDRV_ARGS(PJRT_Event_IsReady);
    args.event = event;
    pwdrv_status status = PWDRV_CALL(api, PJRT_Event_IsReady);
    if (PWDRV_FAILED(status) || !args.is_ready) return status;
  }
  PWDRV_ARGS(PJRT_Event_Error);
  args.event = event;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Event_Error);
  if (status.missing != NULL) return status;
  *error = status.error;
  *fired = true;
  pwdrv_event_destroy(api, event);
  return (pwdrv_status){NULL, NULL};
}

static void on_ready(PJRT_Error* error, void* handle) {
  pathwaysDriverFired((uintptr_t)handle, pwdrv_counted(error));
}

pwdrv_status pwdrv_event_watch(const PJRT_Api* api, PJRT_Event* event, uintptr_t handle) {
  PWDRV_ARGS(PJRT_Event_OnReady);
  args.event = event;
  args.callback = on_ready;
  args.user_arg = (void*)handle;
  return PWDRV_CALL(api, PJRT_Event_OnReady);
}
