// Events are the plugin's own. Two slots are ours, to keep the child of a fork
// from waiting for threads that it does not have.
#include "door.h"

PJRT_Error* pw_PJRT_Event_Await(PJRT_Event_Await_Args* args) {
  if (pw_forked) return pw_forked_error();
  return PW_HAS(PJRT_Event_Await) ? pw_under->PJRT_Event_Await(args) : pw_unimplemented("PJRT_Event_Await");
}

PJRT_Error* pw_PJRT_Event_OnReady(PJRT_Event_OnReady_Args* args) {
  if (pw_forked) return pw_forked_error();
  return PW_HAS(PJRT_Event_OnReady) ? pw_under->PJRT_Event_OnReady(args) : pw_unimplemented("PJRT_Event_OnReady");
}
