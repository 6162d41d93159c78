// Device time: how long programs compute on the devices of this process (devicetime.c).
#ifndef PATHWAYS_CAPI_EMBEDDED_DEVICETIME_H_
#define PATHWAYS_CAPI_EMBEDDED_DEVICETIME_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// pw_launch is a measured launch on a device, from pw_time_begin until pw_time_end. The caller has its memory.
typedef struct pw_launch {
  int64_t begun;            // by pw_clock
  uint32_t weight;          // the runs that it stands for
  _Atomic int32_t missing;  // inputs that have yet to come
  _Atomic int64_t ready;    // when the last of them came; 0: none was missing
  _Atomic int64_t done;     // when the device was through, as it was told; 0 before
  int64_t spent;            // the device time of one run; guarded by the device's mutex, as is the rest
  struct pw_launch *older, *newer;
} pw_launch;

// pw_device_time is the time that a device has computed.
typedef struct {
  _Atomic int32_t left;   // launches of short programs until one is measured
  _Atomic int32_t mark;   // left, as the last measured launch left it: equal if no launch has come since
  _Atomic int64_t spent;  // nanoseconds
  pthread_mutex_t mu;     // guards the rest
  int64_t until;          // when the device was last seen to end a computation, by pw_clock
  pw_launch *oldest, *newest;  // measured launches that count and have not ended
} pw_device_time;

// pw_device_times are those of a client's addressable devices. Computations that end after their client refer to them.
typedef struct {
  _Atomic int32_t refs;
  size_t num;
  pw_device_time devices[];
} pw_device_times;

// pw_program_time is the time that a program has taken. Computations that end after their program refer to it.
typedef struct {
  _Atomic int32_t refs;
  pw_device_times* devices;
  _Atomic bool always;    // each launch is measured: the program takes long, or is not known yet
  _Atomic uint32_t since;  // launches since the last one that counted
  _Atomic uint32_t known;  // measured runs, up to as many as are needed to know the program
  // Read and written as atomics, by Go too.
  int64_t runs;
  int64_t spent;  // nanoseconds on all devices
  int64_t usual;  // nanoseconds of a run on each device, averaged over the last ones
} pw_program_time;

// Both _new return NULL if memory is short, and make one reference, which _drop drops. _drop allows NULL.
pw_device_times* pw_device_times_new(size_t devices);
void pw_device_times_drop(pw_device_times* times);
pw_program_time* pw_program_time_new(pw_device_times* devices);
void pw_program_time_drop(pw_program_time* time);

// pw_time_note notes a launch of a program. Launches at the same time on several threads may be counted as one: no
// instruction here locks the bus, nor in pw_time_due.
static inline void pw_time_note(pw_program_time* p) {
  uint32_t since = atomic_load_explicit(&p->since, memory_order_relaxed);
  atomic_store_explicit(&p->since, since + 1, memory_order_relaxed);
}

// pw_time_due reports whether a launch on one device, whose end is not watched anyway, is to be measured.
static inline bool pw_time_due(pw_program_time* p, pw_device_time* d) {
  int32_t left = atomic_load_explicit(&d->left, memory_order_relaxed);
  if (left <= 0 || atomic_load_explicit(&p->always, memory_order_relaxed)) return true;
  atomic_store_explicit(&d->left, left - 1, memory_order_relaxed);
  return false;
}

// pw_time_weigh is called right before a measured launch, for each of its devices. It returns for how many runs the
// launch counts: 0 if it is measured only to know when the next one begins.
uint32_t pw_time_weigh(pw_program_time* program, pw_device_time* device);

// pw_time_begin notes a measured launch, whose first three fields are set, after those that the device has already.
void pw_time_begin(pw_device_time* device, pw_launch* launch);

// pw_time_end takes a launch off its device that was through at launch->done, and whose inputs have come. It returns
// the device time of a run. If it is not known when the device began with it, it is taken to have needed the usual
// time: *guessed is set, and launch->ready is that moment.
int64_t pw_time_end(pw_device_time* device, pw_launch* launch, int64_t usual, bool* guessed);

// pw_time_took adds a run, which stands for weight runs, to its program. If it was measured, its time enters the
// average of such runs.
void pw_time_took(pw_program_time* program, int64_t spent, size_t devices, uint32_t weight, bool measured);

#endif  // PATHWAYS_CAPI_EMBEDDED_DEVICETIME_H_
