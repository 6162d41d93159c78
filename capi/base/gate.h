// A gate is what threads wait for: it opens once, and stays open. Every function may be called from any thread.
#ifndef PATHWAYS_CAPI_BASE_GATE_H_
#define PATHWAYS_CAPI_BASE_GATE_H_

#include <stdatomic.h>
#include <stdint.h>

typedef struct {
  _Atomic uint32_t state;  // the word that waiters sleep on
  _Atomic uint32_t waiters;
} pw_gate;

static inline uint32_t pw_gate_state(pw_gate* gate) { return atomic_load_explicit(&gate->state, memory_order_acquire); }
void pw_gate_open(pw_gate* gate, uint32_t state);
void pw_gate_wait(pw_gate* gate);
// pw_gate_wait_for waits at most this long. A signal ends the wait too.
void pw_gate_wait_for(pw_gate* gate, int64_t ns);

int64_t pw_clock(void);  // monotonic, in nanoseconds

#endif  // PATHWAYS_CAPI_BASE_GATE_H_
