// Events are the plugin's own. Two slots are ours, to keep the child of a fork
// from waiting for threads that it does not have.
#include "door.h"

PJRT_Error* pw_PJRT_Event_Await(PJRT_Event_Await_Args* args) {
  return pw_forked ? pw_forked_error() : pw_under->PJRT_Event_Await(args);
}

PJRT_Error* pw_PJRT_Event_OnReady(PJRT_Event_OnReady_Args* args) {
  return pw_forked ? pw_forked_error() : pw_under->PJRT_Event_OnReady(args);
}
