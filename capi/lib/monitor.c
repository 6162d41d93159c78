// Slack for the monitor thread of Go's runtime, which a call into C wakes when the
// process was idle, and which from then on looks every 20 microseconds until the
// process is idle again. A worker that runs something short for every message, and
// sleeps in between, pays for three to five wake-ups of it each time: half of all
// that eight workers on two processors do in an all-reduce that is waited for.
//
// Linux ends a sleep late by up to the thread's timer slack, which a thread has from
// the one that makes it. So the monitor is made by a thread that has, for so long,
// more than the usual 50 microseconds of it. What the monitor is needed for, to take a
// processor (GOMAXPROCS) from a thread that waits in C, then takes up to so much
// longer; so clients have spare processors (device/host) for as long as they live. A
// process without a client has no thread in C that anything of Go's waits for, and when
// the last client has gone the monitor sleeps.
//
// The runtime makes two threads in this order where it is a library: one to start on,
// and by that one the monitor. Were it another order, some other thread of the
// runtime would have the slack, and nothing else would be different.
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>

#define MONITOR 2
#define SLACK_NS 5000000UL

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);

// All threads of the runtime come by here: the linker's --wrap, in main.go.
__attribute__((visibility("hidden"))) int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                                void* (*start)(void*), void* argument) {
  static int made;
  static unsigned long usual;  // that of who loads the library
  int number = __atomic_add_fetch(&made, 1, __ATOMIC_ACQ_REL);
  int now = prctl(PR_GET_TIMERSLACK);
  if (number == 1 && now > 0) __atomic_store_n(&usual, now, __ATOMIC_RELEASE);
  // The monitor makes threads as well, which are not to have its slack.
  unsigned long slack = number == MONITOR ? SLACK_NS : __atomic_load_n(&usual, __ATOMIC_ACQUIRE);
  if (now <= 0 || slack == 0 || slack == (unsigned long)now)
    return __real_pthread_create(thread, attributes, start, argument);
  prctl(PR_SET_TIMERSLACK, slack);
  int failed = __real_pthread_create(thread, attributes, start, argument);
  prctl(PR_SET_TIMERSLACK, now);
  return failed;
}
