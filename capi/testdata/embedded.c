// Tests of the C of capi/embedded that needs no plugin: how device time is counted.
#include "unit.h"

#include <pthread.h>

#include "devicetime.h"

enum { kLaunches = 4, kUsual = 2 };

// charged plays events of launches a, b, …, and returns what each was charged, and the device. Each event is a verb, the
// launch, and when: "given"; "waits" and "has" for an input; "told" for an end that is counted later; "end".
static const char* charged(const char* events, bool guesses) {
  static char text[256];
  pw_device_times* times = pw_device_times_new(1);
  CHECK(times != NULL);
  pw_device_time* d = &times->devices[0];
  pw_launch launches[kLaunches] = {0};
  int64_t spent[kLaunches] = {0};
  bool guessed = false;
  char verb[8], name;
  int at, size, given = 0;
  for (; sscanf(events, "%7s %c %d%n", verb, &name, &at, &size) == 3; events += size + (events[size] == ',')) {
    pw_launch* l = &launches[name - 'a'];
    if (strcmp(verb, "given") == 0) {
      l->begun = at;
      l->weight = 1;
      pw_time_begin(d, l);
      given++;
    } else if (strcmp(verb, "waits") == 0) {
      l->missing++;
    } else if (strcmp(verb, "has") == 0) {
      l->missing--;
      l->ready = at;
    } else {
      l->done = at;
      if (strcmp(verb, "end") == 0) spent[name - 'a'] = pw_time_end(d, l, kUsual, &guessed);
    }
  }
  CHECK(*events == '\0' && d->oldest == NULL && d->newest == NULL);
  CHECK(guessed == guesses);
  size_t n = 0;
  for (int i = 0; i < given; i++) n += (size_t)sprintf(text + n, "%c %d, ", 'a' + i, (int)spent[i]);
  sprintf(text + n, "all %d", (int)d->spent);
  pw_device_times_drop(times);
  return text;
}

static void each_moment_is_charged_to_one_launch(void) {
  static const struct {
    const char *events, *want;
    bool guesses;
  } cases[] = {
      {"given a 10, given b 11, end a 13, end b 15", "a 3, b 2, all 5", false},
      {"given a 10, end a 13, given b 14, end b 15", "a 3, b 1, all 4", false},
      // The first is told late: the second took its usual time.
      {"given a 10, given b 11, end b 16, end a 17", "a 5, b 2, all 7", true},
      {"given a 10, given b 15, end b 16, end a 17", "a 6, b 1, all 7", true},
      {"given a 10, given b 11, given c 11, end b 15, end c 18, end a 19", "a 5, b 2, c 2, all 9", true},
      {"given a 10, given b 11, given c 11, end c 16, end a 17, end b 18", "a 5, b 1, c 2, all 8", true},
      // Its end is known, and counted late.
      {"given a 10, given b 11, told a 13, end b 15, end a 13", "a 3, b 2, all 5", false},
      // It was launched after the second, on another thread.
      {"given b 11, given a 12, end b 13, end a 15", "a 2, b 2, all 4", false},
      // It waits for an input, and the second ran meanwhile.
      {"waits a 0, given a 10, given b 11, end b 13, has a 14, end a 16", "a 2, b 2, all 4", false},
      {"waits a 0, given a 10, has a 11, given b 12, end b 16, end a 17", "a 4, b 2, all 6", true},
      // The news of its input came after its end.
      {"waits a 0, given a 10, told a 16, has a 17, end a 16", "a 2, all 2", true},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char* got = charged(cases[i].events, cases[i].guesses);
    if (strcmp(got, cases[i].want) != 0) {
      fprintf(stderr, "%s: %s, want %s\n", cases[i].events, got, cases[i].want);
      exit(1);
    }
  }
}

// A sampled run, which stands for many, is charged for all of them; one that only says when the next begins, for none.
static void launches_are_charged_for_as_many_as_they_stand_for(void) {
  pw_device_times* times = pw_device_times_new(1);
  CHECK(times != NULL);
  pw_device_time* d = &times->devices[0];
  pw_launch first = {.begun = 10, .done = 13}, second = {.begun = 11, .weight = 100, .done = 15};
  bool guessed = false;
  pw_time_begin(d, &first);
  pw_time_begin(d, &second);
  CHECK(pw_time_end(d, &first, kUsual, &guessed) == 3 && d->spent == 0);
  CHECK(pw_time_end(d, &second, kUsual, &guessed) == 2 && d->spent == 200);
  CHECK(!guessed && d->oldest == NULL);
  pw_device_times_drop(times);
}

enum { kThreads = 4, kRounds = 2000 };

static void* launch_often(void* arg) {
  pw_device_time* d = arg;
  bool guessed = false;
  for (int64_t i = 0; i < kRounds; i++) {
    pw_launch l = {.begun = i, .weight = 1};
    pw_time_begin(d, &l);
    l.done = i + 1;
    CHECK(pw_time_end(d, &l, 1, &guessed) >= 0);
  }
  return NULL;
}

static void threads_charge_each_moment_once(void) {
  pw_device_times* times = pw_device_times_new(1);
  CHECK(times != NULL);
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; i++) CHECK(pthread_create(&threads[i], NULL, launch_often, &times->devices[0]) == 0);
  for (int i = 0; i < kThreads; i++) pthread_join(threads[i], NULL);
  CHECK(times->devices[0].spent == kRounds && times->devices[0].oldest == NULL);
  pw_device_times_drop(times);
}

int main(void) {
  each_moment_is_charged_to_one_launch();
  launches_are_charged_for_as_many_as_they_stand_for();
  threads_charge_each_moment_once();
}
