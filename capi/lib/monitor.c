// Timer slack for the monitor thread of Go's runtime. A call into C wakes the monitor when the process was idle, and
// from then on it looks every 20 microseconds until the process is idle again. A worker that runs something short for
// every message, and sleeps in between, pays for three to five wake-ups of the monitor each time: half of all processor
// time of eight workers on two processors in an all-reduce that the client waits for.
//
// Linux ends a sleep late by up to the thread's timer slack, which a thread inherits from the one that makes it. So the
// monitor is made by a thread that temporarily has more than the usual 50 microseconds. The monitor's purpose, taking a
// processor (GOMAXPROCS) from a thread that blocks in C, is then delayed by as much. Clients of devices, whose threads
// block in plugins, have spare processors for that (device/host). A client of a cluster has one only where Go has but
// one by itself: only callbacks of events block there, for Python's GIL, and whenever operations end Go would wake a
// thread to look for work on the idle processor, which takes a third of a client's time in calls that it waits for.
//
// As a library, the runtime makes two threads in this order: one to start on, and that one makes the monitor. In
// another order some other thread of the runtime would have the slack, and nothing else would change.
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>

#define MONITOR 2
#define SLACK_NS 5000000UL

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument);

// All threads of the runtime are made here: the linker's --wrap, in main.go.
__attribute__((visibility("hidden"))) int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                                                                void* (*start)(void*), void* argument) {
  static int made;
  static unsigned long usual;  // that of the thread that loads the library
  int number = __atomic_add_fetch(&made, 1, __ATOMIC_ACQ_REL);
  int now = prctl(PR_GET_TIMERSLACK);
  if (number == 1 && now > 0) __atomic_store_n(&usual, now, __ATOMIC_RELEASE);
  // The monitor makes threads as well, which must not inherit its slack.
  unsigned long slack = number == MONITOR ? SLACK_NS : __atomic_load_n(&usual, __ATOMIC_ACQUIRE);
  if (now <= 0 || slack == 0 || slack == (unsigned long)now)
    return __real_pthread_create(thread, attributes, start, argument);
  prctl(PR_SET_TIMERSLACK, slack);
  int failed = __real_pthread_create(thread, attributes, start, argument);
  prctl(PR_SET_TIMERSLACK, now);
  return failed;
}
