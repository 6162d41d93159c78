package cluster_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/client"
	"github.com/openpathways/pathways/core/grant"
	"github.com/openpathways/pathways/core/placement"
	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// actor is a client with random work and a memory of what must come of it.
type actor struct {
	x    *trial
	t    *testing.T
	name string
	r    *rand.Rand
	s    client.Cluster
	// elastic: it has asked for more devices than there may be.
	elastic bool
	groups  [][]int // devices by island
	arrays  []*array
	slices  []uint64 // granted
	run     map[string]*client.Remote
	risky   map[string]bool

	mu    sync.Mutex // guards the rest
	token uint64
	ended map[uint64][]error
	made  map[uint64]*deed
	told  *sync.Cond
}

// deed is an operation that was submitted.
type deed struct {
	what string
	risk bool
}

func newActor(x *trial, i int) *actor {
	a := &actor{x: x, t: x.t, name: fmt.Sprint("c", i), r: rand.New(rand.NewPCG(x.seed, uint64(100+i))),
		run: map[string]*client.Remote{}, risky: map[string]bool{},
		ended: map[uint64][]error{}, made: map[uint64]*deed{}}
	a.told = sync.NewCond(&a.mu)
	return a
}

func (a *actor) notify(batch []client.Ended) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range batch {
		a.x.seen.add("%s: operation %d ends: %v", a.name, e.Token, e.Err)
		a.ended[e.Token] = append(a.ended[e.Token], e.Err)
	}
	a.told.Broadcast()
}

// risk says that something may be wrong with these devices, for the client at least. The worker of a device of an
// elastic session has no name if none has come for it.
func (a *actor) risk(devices ...int) bool {
	if a.x.doomed[a.name] {
		return true
	}
	for i, d := range devices {
		w := a.worker(d)
		if w == "" || a.x.doomed[w] || a.x.flaky[a.local(d)] || a.x.areApart(w, a.name) {
			return true
		}
		for _, other := range devices[:i] {
			if a.x.areApart(w, a.worker(other)) {
				return true
			}
		}
	}
	return false
}

// areApart reports whether two processes are cut apart for long at some time.
func (x *trial) areApart(one, other string) bool {
	return x.apart[[2]string{one, other}] || x.apart[[2]string{other, one}]
}

// worker is the name of the worker of a device: now, since a spare may have taken the place of one that was lost.
func (a *actor) worker(d int) string { return a.s.WorkerName(a.s.Devices()[d].Worker) }

// local is the device's number over all drivers; -1 of one of a spare, with which nothing is ever wrong.
func (a *actor) local(d int) int {
	number, ok := strings.CutPrefix(a.worker(d), "worker-")
	if !ok {
		return -1
	}
	n := statustest.Value(strconv.Atoi(number)).OK(a.t)
	return n*a.x.each + int(a.s.Devices()[d].Local)
}

func (a *actor) begin(what string, risk bool) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token++
	a.made[a.token] = &deed{what, risk}
	return a.token
}

// gone takes back a submission that was refused, and reports whether the session is
// lost.
func (a *actor) gone(token uint64, err error) bool {
	if err == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	d := a.made[token]
	delete(a.made, token)
	a.blame(d.what+" was refused", err, d.risk)
	if a.s.Lost() == nil {
		a.t.Errorf("%s: %s was refused and the session lives: %v", a.name, d.what, err)
	}
	return true
}

// blame checks an error that a client sees.
func (a *actor) blame(what string, err error, risk bool) {
	const before = "failed before the controller started again"
	if (a.x.memory > 0 || a.x.tenants) && (a.x.isShort(err) || a.x.restarts && strings.Contains(err.Error(), before)) {
		return // it waited for room in vain, or what it uses did
	}
	if a.x.alone && strings.Contains(err.Error(), "is in an exclusive slice of session") {
		return
	}
	if len(a.x.doomed)+len(a.x.apart) > 0 && strings.Contains(err.Error(), "the compiled program") {
		return // it was to come from a worker that compiled it for another session, whose devices are others
	}
	if !risk {
		a.t.Errorf("%s: %s, with which nothing is wrong: %v", a.name, what, err)
		return
	}
	if a.x.doomed[a.name] {
		return // whatever its end is
	}
	text := err.Error()
	if a.elastic && strings.Contains(text, "this device has no worker yet") {
		return
	}
	if a.x.restarts && strings.Contains(text, before) {
		return // because of a process that was lost then
	}
	if strings.Contains(text, badLuck) {
		if where := "[moving a"; strings.Count(text, where) > 1 {
			a.t.Errorf("%s: the error says more than once where it happened: %v", a.name, err)
		}
		return
	}
	for name := range a.x.doomed {
		if strings.Contains(text, name) {
			return
		}
	}
	for pair := range a.x.apart {
		if strings.Contains(text, "cannot reach each other") && strings.Contains(text, "("+pair[0]+")") &&
			strings.Contains(text, pair[1]) {
			return
		}
	}
	a.t.Errorf("%s: %s failed and the error names no lost process (%v): %v", a.name, what,
		slices.Sorted(maps.Keys(a.x.doomed)), err)
}

func (a *actor) work() {
	time.Sleep(time.Duration(a.r.Int64N(int64(workTime / 2))))
	hello := &wire.Hello{Name: a.name, Token: a.credential()}
	if a.elastic = a.r.IntN(4) == 0; a.elastic {
		hello.Devices, hello.Elastic = uint32((len(a.x.drivers)-1)*a.x.each+a.r.IntN(3*a.x.each)), true
	}
	s, err := a.x.local.ConnectAsking(a.t.Context(), hello, a.notify)
	if err != nil {
		if len(a.x.doomed) == 0 && !(a.x.alone && strings.Contains(err.Error(), "in exclusive slices")) {
			a.t.Errorf("%s cannot connect: %v", a.name, err)
		}
		return
	}
	a.s = s
	defer s.Close()
	islands := map[uint32][]int{}
	for i, d := range s.Devices() {
		islands[d.Slice] = append(islands[d.Slice], i)
	}
	for _, k := range slices.Sorted(maps.Keys(islands)) {
		a.groups = append(a.groups, islands[k])
	}
	pace := time.Duration(a.r.Int64N(int64(workTime / 20)))
	for range 10 + a.r.IntN(60) {
		if !a.step() {
			break
		}
		if pace > 0 && a.r.IntN(4) > 0 {
			time.Sleep(time.Duration(a.r.Int64N(int64(pace))))
		}
		if a.r.IntN(20) == 0 {
			a.wait()
		}
		for (a.x.memory > 0 || a.x.tenants) && len(a.arrays) > 3 && a.r.IntN(3) > 0 { // so that others get room
			a.free(a.r.IntN(len(a.arrays)))
		}
	}
	if a.r.IntN(4) == 0 { // it goes in the middle of its work
		s.Close()
		a.wait()
		return
	}
	a.wait()
	for _, y := range a.arrays {
		for _, d := range y.devices {
			a.fetch(y, d)
		}
	}
	a.wait()
	a.settle()
}

// settle looks at how all that was submitted has ended.
func (a *actor) settle() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for token, d := range a.made {
		if n := len(a.ended[token]); n != 1 {
			a.t.Errorf("%s: %s ended %d times", a.name, d.what, n)
		} else if err := a.ended[token][0]; err != nil {
			a.blame(d.what, err, d.risk)
		}
	}
	for token := range a.ended {
		if a.made[token] == nil {
			a.t.Errorf("%s: operation %d ended and was never taken", a.name, token)
		}
	}
}

// wait waits for the ends of all that was submitted.
func (a *actor) wait() {
	late := time.AfterFunc(patience, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		var missing []string
		for token, d := range a.made {
			if len(a.ended[token]) == 0 {
				missing = append(missing, d.what)
			}
		}
		slices.Sort(missing)
		report := a.x.local.Report()
		stacks := make([]byte, 1<<20)
		a.t.Logf("%s", stacks[:runtime.Stack(stacks, true)])
		panic(fmt.Sprintf("seed %d: %s waits in vain for %q; faults %+v; cluster: %v", a.x.seed, a.name, missing, a.x.faults,
			report))
	})
	defer late.Stop()
	a.mu.Lock()
	for {
		open := 0
		for token := range a.made {
			if len(a.ended[token]) == 0 {
				open++
			}
		}
		if open == 0 {
			break
		}
		a.told.Wait()
	}
	a.mu.Unlock()
}

// step does something; false where the session is lost.
func (a *actor) step() bool {
	switch k := a.r.IntN(22); {
	case k == 20:
		return a.slice()
	case k == 21 && len(a.arrays) > 0:
		return a.reduce()
	case k < 3 || len(a.arrays) == 0:
		return a.put()
	case k < 11:
		return a.compute()
	case k < 14:
		return a.play()
	case k < 16:
		return a.move()
	case k < 18:
		y := a.arrays[a.r.IntN(len(a.arrays))]
		return a.fetch(y, y.devices[a.r.IntN(len(y.devices))])
	default:
		i := a.r.IntN(len(a.arrays))
		a.free(i)
		return true
	}
}

// slice asks for a slice, remaps one, or releases one.
func (a *actor) slice() bool {
	var number uint64
	var devices []int
	var err error
	switch i := a.r.IntN(len(a.slices) + 1); {
	case i == len(a.slices):
		of := a.groups[a.r.IntN(len(a.groups))]
		want := placement.Want{Devices: 1 + a.r.IntN(len(of)), Exclusive: a.x.alone && a.r.IntN(3) == 0}
		terms := grant.Terms{Wait: time.Duration(a.r.Int64N(int64(silence)))}
		var asked *grant.Request
		if asked, err = a.s.Ask(want, terms); err == nil {
			number = asked.Number
			if devices, err = asked.Wait(a.t.Context()); err == nil {
				a.slices = append(a.slices, number)
			}
		}
	case a.r.IntN(2) == 0:
		number = a.slices[i]
		devices, err = a.s.Remap(a.t.Context(), number)
	default:
		a.s.Release(a.slices[i])
		a.slices = slices.Delete(a.slices, i, i+1)
		return true
	}
	switch {
	case err == nil:
		if again := slices.Compact(slices.Sorted(slices.Values(devices))); len(again) != len(devices) || len(devices) == 0 ||
			again[len(again)-1] >= len(a.s.Devices()) {
			a.t.Errorf("%s: slice %d is %v of %d devices", a.name, number, devices, len(a.s.Devices()))
		}
	case a.s.Lost() != nil:
		return false
	case status.CodeOf(err) != status.ResourceExhausted || len(a.x.doomed) == 0 &&
		!a.elastic && !a.x.tenants && !a.x.alone:
		a.t.Errorf("%s: slice %d, of devices that are there: %v", a.name, number, err)
	}
	return true
}

func (a *actor) free(i int) {
	a.s.Free([]uint64{a.arrays[i].object})
	a.arrays = slices.Delete(a.arrays, i, i+1)
}

// some draws devices of one island.
func (a *actor) some() []int {
	of := slices.Clone(a.groups[a.r.IntN(len(a.groups))])
	a.r.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	return of[:1+a.r.IntN(len(of))]
}

func (a *actor) put() bool {
	y := &array{object: a.s.Objects(1), devices: a.some(), values: map[int]shard{}}
	y.risk = a.risk(y.devices...)
	p := &client.PutSpec{Object: y.object, Shape: a.x.shape()}
	for _, d := range y.devices {
		var v shard
		for i := range v {
			v[i] = float32(a.r.IntN(100))
		}
		y.values[d] = v
		p.Devices = append(p.Devices, uint32(d))
	}
	var bad error
	if a.r.IntN(20) == 0 { // its bytes cannot be had
		bad, y.risk = status.New(status.DataLoss, badLuck+" of a file"), true
	}
	p.Fill = func(d uint32, dst []byte, written func(error)) {
		a.x.encode(dst, y.values[int(d)])
		if a.x.later(a.name) {
			time.AfterFunc(a.x.delay(a.name, "fill"), func() { written(bad) })
		} else {
			written(bad)
		}
	}
	p.Token = a.begin(fmt.Sprintf("put of %d to %v", y.object, y.devices), y.risk)
	if a.gone(p.Token, a.s.Put(p)) {
		return false
	}
	a.arrays = append(a.arrays, y)
	return true
}

// compiled is a computation for some devices; nil if it did not compile.
func (a *actor) compiled(n int, devices []int) *client.Remote {
	key := fmt.Sprint(n, devices)
	if a.run[key] == nil && !a.risky[key] {
		code := a.x.program(n).Source().Code
		if n%2 == 0 { // it is too long for a message
			code = append(code, bytes.Repeat([]byte(" "), wire.ContentSize)...)
		}
		risk := a.risk(devices...)
		p, err := a.s.Compile(a.t.Context(), client.CompileSpec{
			Format: sim.Format, Code: code, Options: sim.CompileOptions(devices)})
		if err != nil {
			a.blame("compiling "+key, err, risk)
			a.risky[key] = true
			return nil
		}
		a.run[key] = p
	}
	return a.run[key]
}

func (a *actor) compute() bool {
	first := a.r.IntN(len(a.arrays))
	y := a.arrays[first]
	n := a.r.IntN(len(computations))
	c := computations[n]
	risk := a.risk(y.devices...)
	compiled := a.compiled(n, y.devices)
	if compiled == nil {
		return a.s.Lost() == nil
	}
	var alike []*array
	for _, o := range a.arrays {
		if slices.Equal(o.devices, y.devices) {
			alike = append(alike, o)
		}
	}
	in := []*array{y}
	for len(in) < c.args {
		in = append(in, alike[a.r.IntN(len(alike))])
	}
	z := &array{object: a.s.Objects(1), devices: y.devices, values: map[int]shard{}, risk: risk}
	spec := &client.RunSpec{Program: compiled.ID, FirstOutput: z.object, Only: -1}
	for arg, o := range in {
		other := alike[a.r.IntN(len(alike))]
		if rows := len(y.devices); n != replace && rows > 1 && other != o && a.r.IntN(3) == 0 {
			// some rows of one array, some of another
			k := 1 + a.r.IntN(rows-1)
			spec.Mixed = append(spec.Mixed, &wire.Mixed{
				Argument: uint32(arg), Pieces: []*wire.Piece{
					{Object: o.object, Rows: uint32(k)}, {Object: other.object, Rows: uint32(rows - k)}}})
			mixed := &array{values: maps.Clone(o.values), risk: o.risk || other.risk}
			for _, d := range y.devices[k:] {
				mixed.values[d] = other.values[d]
			}
			o, in[arg] = mixed, mixed
		}
		spec.Inputs = append(spec.Inputs, o.object) // 0 of a mixed one
		z.risk = z.risk || o.risk
	}
	z.compute(n, in)
	times := 1
	if spec.Mixed != nil {
		times += a.r.IntN(3) // what is read again is assembled
	}
	for range times {
		spec.Token = a.begin(fmt.Sprintf("%s of %v on %v into %d", c.program.Name, spec.Inputs, y.devices, z.object), z.risk)
		if a.gone(spec.Token, a.s.Run(spec)) {
			return false
		}
		a.arrays = append(a.arrays, z)
		again := *z
		again.object, again.risk = a.s.Objects(1), z.risk || a.risk(y.devices...)
		spec.FirstOutput, z = again.object, &again
	}
	if n == replace {
		a.free(first)
	}
	return true
}

// reduce computes one total several times in a row, and keeps the last: devices that wait for each other, again and
// again, are ahead of each other by as much as they may be.
func (a *actor) reduce() bool {
	y := a.arrays[a.r.IntN(len(a.arrays))]
	compiled := a.compiled(total, y.devices)
	if compiled == nil {
		return a.s.Lost() == nil
	}
	var z *array
	for range 2 + a.r.IntN(20) {
		if z != nil {
			a.s.Free([]uint64{z.object})
		}
		z = &array{object: a.s.Objects(1), devices: y.devices, values: map[int]shard{},
			risk: y.risk || a.risk(y.devices...)}
		z.compute(total, []*array{y})
		token := a.begin(fmt.Sprintf("total of %d on %v into %d", y.object, y.devices, z.object), z.risk)
		if a.gone(token, a.s.Run(&client.RunSpec{Program: compiled.ID, FirstOutput: z.object, Only: -1,
			Inputs: []uint64{y.object}, Token: token})) {
			return false
		}
	}
	a.arrays = append(a.arrays, z)
	return true
}

// moves draws a copy of shards of an array to other devices.
func (a *actor) moves(y *array, object uint64) (*array, *wire.Transfer) {
	z := &array{object: object, devices: a.some(), values: map[int]shard{}, risk: y.risk}
	whole, wide := &wire.Array{Dtype: uint32(shape.F32), Dims: a.x.shape().Dims}, a.x.wide
	m := &wire.Transfer{Object: z.object, Array: whole}
	for _, d := range z.devices {
		from := y.devices[a.r.IntN(len(y.devices))]
		z.risk = z.risk || a.risk(from, d)
		v := y.values[from]
		if a.r.IntN(2) == 0 {
			m.Moves = append(m.Moves, &wire.Move{Source: y.object, From: uint32(from), To: uint32(d)})
		} else { // the first k elements from the end of one shard, the others from another's beginning
			k, other := 1+a.r.Int64N(3), y.devices[a.r.IntN(len(y.devices))]
			z.risk = z.risk || a.risk(other, d)
			last, first := y.values[from], y.values[other]
			copy(v[:k], last[4-k:])
			copy(v[k:], first[:4-k])
			m.Moves = append(m.Moves, &wire.Move{Source: y.object, From: uint32(from), To: uint32(d), Start: []int64{4 - k, 0},
				Size: []int64{k, wide}, At: []int64{0, 0}, Shard: whole},
				&wire.Move{Source: y.object, From: uint32(other), To: uint32(d), Start: []int64{0, 0},
					Size: []int64{4 - k, wide}, At: []int64{k, 0}, Shard: whole})
		}
		z.values[d] = v
	}
	return z, m
}

// move copies shards of an array to other devices.
func (a *actor) move() bool {
	y := a.arrays[a.r.IntN(len(a.arrays))]
	z, m := a.moves(y, a.s.Objects(1))
	token := a.begin(fmt.Sprintf("move of %d on %v to %d on %v", y.object, y.devices, z.object, z.devices), z.risk)
	if a.gone(token, a.s.Transfer(m, token)) {
		return false
	}
	a.arrays = append(a.arrays, z)
	return true
}

// fetch reads a shard and compares.
func (a *actor) fetch(y *array, d int) bool {
	dst := make([]byte, a.x.shape().Bytes())
	what := fmt.Sprintf("fetch of %d from device %d", y.object, d)
	token := a.begin(what, y.risk || a.risk(d))
	want := y.values[d]
	err := a.s.Fetch(y.object, uint32(d), dst, func(err error) {
		if err == nil {
			if got, err := a.x.decode(dst); got != want || err != nil {
				a.t.Errorf("%s: %s: %v, %v, want %v", a.name, what, got, err, want)
			}
		}
		a.notify([]client.Ended{{Token: token, Err: err}})
	})
	return !a.gone(token, err)
}
