package command

import "sync"

// leastHeap is how many bytes a controller or a worker may allocate, at least, from one collection of garbage to the
// next. Most of what such a process allocates is of one computation, and what it keeps is a few megabytes: at Go's
// default, which is as much as is kept and at least 4 MiB, a busy worker collects some times a second, which takes a
// twentieth of its processor time.
const leastHeap = 32 << 20

// ballast is memory that is never touched, so the system gives it no pages. Go counts it as kept. Unlike a higher
// GOGC, it adds the same to a heap of any size.
var ballast []byte

// collectSeldom has this process, which serves a controller or workers and nothing else, collect garbage less often.
var collectSeldom = sync.OnceFunc(func() { ballast = make([]byte, leastHeap) })
