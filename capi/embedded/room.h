// Runs and new arrays of a session whose memory has a limit (room.c). Sessions without one have no part in this.
#ifndef PATHWAYS_CAPI_EMBEDDED_ROOM_H_
#define PATHWAYS_CAPI_EMBEDDED_ROOM_H_

#include "run.h"

// pw_kept_new allocates what pw_keep needs. It returns false if memory is short. Without a limit it does nothing.
bool pw_kept_new(pw_call* call);
// pw_keep has all arrays that an admitted run reads and makes counted until the run has ended: until pw_kept_drop.
void pw_keep(pw_call* call, const pw_turn* turn);
// pw_kept_drop ends that, on any thread; pw_kept_unused frees what pw_keep was not called for. kept may be NULL.
void pw_kept_drop(pw_kept* kept);
void pw_kept_unused(pw_kept* kept);
// pw_taken returns the bytes on each device that a run's results will take over from its arguments.
int64_t pw_taken(const pw_call* call);

// pw_room is a wait for room, on the thread of the call that needs it. It begins as zeros.
typedef struct pw_room {
  struct pw_room* next;  // the next older wait
  pw_pass* session;
  uint64_t seen;     // how often room had been made when the core was asked last
  int64_t deadline;  // by pw_clock
  int64_t calm;      // since when no run has been under way, by pw_clock; 0 while one is
  void* python;      // see pw_python_unlock
  bool waits, late, interrupted;
} pw_room;

// pw_room_ask comes before each time that the core is asked. If the core then has no room, pw_room_wait waits until
// there may be more, and returns true: ask again. It returns false if nothing can make room, after the session's
// memory_wait, and on Ctrl-C. pw_room_end ends the wait, takes the core's error or NULL, and returns the call's.
void pw_room_ask(pw_room* room);
bool pw_room_wait(pw_room* room, pw_pass* session);
PJRT_Error* pw_room_end(pw_room* room, PJRT_Error* error);

#endif  // PATHWAYS_CAPI_EMBEDDED_ROOM_H_
