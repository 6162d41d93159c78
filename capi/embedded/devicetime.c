// How long programs take of the devices, measured at little cost.
//
// A computation takes the time from its launch until its end, without that before the end of the one before it on its
// device, and before its inputs have come from elsewhere: the same as on a worker of a cluster (charge in
// core/worker/run.go). To know an end costs an event and a callback, some 1500 instructions, which is much beside a run
// of a few microseconds. So
//
//   gangs of several devices, and runs where memory has a limit   are measured: their ends are watched anyway
//   programs that take kLong or more, or are not known yet        are measured, each run
//   all others                                                    are sampled, two runs of a device in about kGap
//
// The first of the two tells when the second begins. The second stands for all runs of its program since the last that
// counted. The gaps have no common divisor with the period of a loop, since they differ at random. If a long run comes
// right behind short ones that were not measured, these count as part of it, as far as they have not ended at its
// launch.
//
// Ends are not always told in the order of launches: a thread that tells one may be stopped. A launch that is told to
// have ended before an older one of its device is taken to have needed as long as usual, and the older one all of the
// time before.
//
// A launch that is not measured costs two loads and two stores of words that no other device writes.
#include "devicetime.h"

#include <stdlib.h>

#include "base.h"

enum {
  kLong = 100000,  // nanoseconds, a hundred times what it costs to measure a run
  kGap = 256,      // launches, on average; a power of two
  kKnown = 4,      // measured runs until a program is known
  kRecent = 8,     // how many measured runs back the average reaches, about, as on clusters
};

pw_device_times* pw_device_times_new(size_t n) {
  pw_device_times* t = pw_zeros(1, sizeof *t + n * sizeof *t->devices);
  if (t == NULL) return NULL;
  atomic_init(&t->refs, 1);
  t->num = n;
  for (size_t i = 0; i < n; i++) pthread_mutex_init(&t->devices[i].mu, NULL);
  return t;
}

void pw_device_times_drop(pw_device_times* t) {
  if (t == NULL || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1) return;
  for (size_t i = 0; i < t->num; i++) pthread_mutex_destroy(&t->devices[i].mu);
  free(t);
}

pw_program_time* pw_program_time_new(pw_device_times* devices) {
  pw_program_time* p = pw_zeros(1, sizeof *p);
  if (p == NULL) return NULL;
  atomic_init(&p->refs, 1);
  atomic_init(&p->always, true);
  atomic_fetch_add_explicit(&devices->refs, 1, memory_order_relaxed);
  p->devices = devices;
  return p;
}

void pw_program_time_drop(pw_program_time* p) {
  if (p == NULL || atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
  pw_device_times_drop(p->devices);
  free(p);
}

// gap returns a random number of launches from kGap / 2 to kGap * 3 / 2.
static int32_t gap(void) {
  static _Atomic uint64_t state = 1;
  uint64_t x = atomic_load_explicit(&state, memory_order_relaxed) * 6364136223846793005u + 1442695040888963407u;
  atomic_store_explicit(&state, x, memory_order_relaxed);
  return kGap / 2 + (int32_t)(x >> 33) % kGap;
}

uint32_t pw_time_weigh(pw_program_time* p, pw_device_time* d) {
  int32_t left = atomic_load_explicit(&d->left, memory_order_relaxed);
  bool follows = left == atomic_load_explicit(&d->mark, memory_order_relaxed);
  if (left <= 0 && follows) atomic_store_explicit(&d->left, left = gap(), memory_order_relaxed);
  atomic_store_explicit(&d->mark, left, memory_order_relaxed);
  if (!follows && !atomic_load_explicit(&p->always, memory_order_relaxed)) return 0;
  return atomic_exchange_explicit(&p->since, 0, memory_order_relaxed);
}

void pw_time_begin(pw_device_time* d, pw_launch* l) {
  if (l->weight == 0) return;  // its end only says when the next one begins
  pthread_mutex_lock(&d->mu);
  l->older = d->newest;
  *(l->older ? &l->older->newer : &d->oldest) = l;
  d->newest = l;
  pthread_mutex_unlock(&d->mu);
}

static void unlink_launch(pw_device_time* d, pw_launch* l) {
  if (l->weight == 0) return;
  *(l->older ? &l->older->newer : &d->oldest) = l->newer;
  *(l->newer ? &l->newer->older : &d->newest) = l->older;
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

// charge_until charges a launch what is not charged yet of the time from then until then.
static void charge_until(pw_device_time* d, pw_launch* l, int64_t from, int64_t end) {
  from = later(from, d->until);
  if (end <= from) return;
  d->until = end;
  l->spent += end - from;
  atomic_fetch_add_explicit(&d->spent, (end - from) * l->weight, memory_order_relaxed);
}

// start returns when a launch may have begun, as far as it and its inputs tell.
static int64_t start(pw_launch* l) {
  return later(l->begun, atomic_load_explicit(&l->ready, memory_order_relaxed));
}

int64_t pw_time_end(pw_device_time* d, pw_launch* l, int64_t usual, bool* guessed) {
  pthread_mutex_lock(&d->mu);
  int64_t end = atomic_load_explicit(&l->done, memory_order_relaxed), from = start(l);
  if (from > l->begun && from >= end) {  // it was told before the news of its last input
    from = later(l->begun, end - usual);
    *guessed = true;
  }
  for (pw_launch* o = d->oldest; o && o != l; o = o->newer) {
    if (o->begun > l->begun || atomic_load_explicit(&o->missing, memory_order_acquire) > 0) continue;
    int64_t until = atomic_load_explicit(&o->done, memory_order_relaxed);
    if (until == 0 || until > end) {
      until = from = later(from, end - usual);
      *guessed = true;
    }
    charge_until(d, o, start(o), until);
  }
  if (*guessed) atomic_store_explicit(&l->ready, from, memory_order_relaxed);
  charge_until(d, l, from, end);
  unlink_launch(d, l);
  int64_t spent = l->spent;
  pthread_mutex_unlock(&d->mu);
  return spent;
}

void pw_time_took(pw_program_time* p, int64_t spent, size_t devices, uint32_t weight, bool measured) {
  __atomic_fetch_add(&p->runs, weight, __ATOMIC_RELAXED);
  __atomic_fetch_add(&p->spent, spent * weight, __ATOMIC_RELAXED);
  if (!measured) return;
  int64_t time = spent / (int64_t)devices, usual = __atomic_load_n(&p->usual, __ATOMIC_RELAXED);
  usual = usual ? usual + (time - usual) / kRecent : time;
  __atomic_store_n(&p->usual, usual, __ATOMIC_RELAXED);
  uint32_t known = atomic_load_explicit(&p->known, memory_order_relaxed);
  if (known < kKnown) atomic_store_explicit(&p->known, ++known, memory_order_relaxed);
  atomic_store_explicit(&p->always, known < kKnown || usual >= kLong, memory_order_relaxed);
}
