package controller

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/tenant"
	"github.com/openpathways/pathways/core/tracetest"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/device/sim"
)

// TestTraces runs the scripts of testdata/traces. Each line of "steps" is an event,
// and below it stand the actions that follow. A number first is a connection.
//
//	new [window=N] [credit=N] [store=bytes] [sequential] [fair] [wait=seconds] [stuck=seconds]
//	[the lines of a file of tenants]
//	steps
//	1 worker a [slow] devices=2 [island=x] [kind=k] [memory=bytes] | 2 client c [of=tenant] | 3 admin [tenant]
//	2 compile 1 text [on=0,1] [bytes=9]
//	1 compiled 1 [cancelled|kept|notext] [donated=0 [alias=bytes]] [temp=bytes] [form=joined] [error=…]
//	1 want 1 | 1 have 1 [no] | 1 loaded 1 session=1, of a slow worker; others say so by themselves
//	2 accepts 2
//	2 run 1 program=1 makes=2 reads=1 [only=0] | 2 put 1 makes=1 on=0,1 | 2 fetch 2 array=1 device=0
//	2 assemble 3 program=1 of=1:2,2:1
//	2 transfer 3 makes=2 moves=1:0>1 | 2 free 1,2 | 2 forget 1 | 2 abort 1 [error=…]
//	2 profile 1 [stop] | 1 profiled 1 [of=1]
//	2 slice 1 [devices=2 [topology=1,2] [island=x] [kind=k]] | 2 release 1
//	1 done 1,2 [took=nanoseconds,nanoseconds] | 1 failed 1 [error=…] | lost 1 [error=…] | 2 goodbye | tick 10
//	1 beat [computes:gang@devices] [collective:gang@devices/seconds[!devices][>process]] [behind:…] [bytes:…] [calls:…]
//	flush | 3 ask [tenants] | tenants [of=3] [error=…] [lines of a file of tenants, with ; between them]
func TestTraces(t *testing.T) {
	tracetest.Run(t, func(t *testing.T, d *datadriven.TestData) tracetest.Stage {
		c := Config{Cluster: "test", Term: 7, Heartbeat: 1e9, Sequential: d.HasArg("sequential"),
			FirstCome: !d.HasArg("fair")}
		d.MaybeScanArgs(t, "window", &c.Limits.Window)
		d.MaybeScanArgs(t, "credit", &c.Limits.Credit)
		d.MaybeScanArgs(t, "sessions", &c.Limits.Sessions)
		d.MaybeScanArgs(t, "store", &c.Limits.Store)
		d.MaybeScanArgs(t, "wait", &c.MemoryWait)
		c.MemoryWait *= 1e9
		d.MaybeScanArgs(t, "stuck", &c.StuckAfter)
		c.StuckAfter *= 1e9
		if d.Input != "" {
			c.Tenants = tableOf(t, d.Input)
		}
		return &tracer{t: t, st: New(c), now: 1e9, slow: map[uint64]bool{}}
	})
}

func tableOf(t testing.TB, text string) *tenant.Table {
	table := statustest.Value(tenant.Parse("tenants.toml", text, nil)).OK(t)
	return table
}

type tracer struct {
	t   *testing.T
	st  *State
	now int64
	// slow are workers that say nothing of themselves when they have loaded a program.
	slow map[uint64]bool
}

func (tr *tracer) Event(w *strings.Builder, line string) error {
	ev, err := tr.parse(line)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, line)
	tr.step(w, ev)
	return nil
}

// step has State take an event, writes what it does, and has the workers that are to load a program say that they have.
func (tr *tracer) step(w *strings.Builder, ev Event) {
	ev.Now = tr.now
	actions := apart(tr.st.Step(&ev, nil))
	for _, a := range actions {
		tr.print(w, a)
	}
	for _, a := range actions {
		m := new(wire.Load)
		if a.Kind != Send || a.Wire != wire.KindLoad || proto.Unmarshal(sent(a), m) != nil {
			continue
		}
		for _, conn := range a.To {
			if !tr.slow[conn] {
				tr.step(w, Event{Kind: Message, Conn: conn, Wire: wire.KindLoaded,
					Message: &wire.Loaded{Session: m.Session, Program: m.Program}})
			}
		}
	}
}

func (tr *tracer) End(*strings.Builder) {}

func (tr *tracer) parse(line string) (Event, error) {
	if text, ok := strings.CutPrefix(line, "tenants ["); ok {
		return Event{Kind: Tenants, Table: tableOf(tr.t, "["+strings.ReplaceAll(text, ";", "\n"))}, nil
	}
	l := readLine(line)
	switch l.words[0] {
	case "flush":
		return Event{Kind: Flush}, nil
	case "tick":
		seconds, err := strconv.ParseFloat(l.words[1], 64)
		tr.now += int64(seconds * 1e9)
		return Event{Kind: Tick}, err
	case "tenants":
		return Event{Kind: Tenants, Conn: l.number("of"), Err: l.why.Err()}, l.bad
	case "lost":
		return Event{Kind: Lost, Conn: l.parse(l.words[1]), Err: l.why.Err()}, l.bad
	}
	ev := Event{Kind: Message, Conn: l.parse(l.words[0])}
	switch l.words[1] {
	case "worker":
		ev.Kind, ev.Message = Join, l.worker()
		tr.slow[ev.Conn] = l.words[3] == "slow"
	case "client":
		ev.Kind, ev.Message = Join, &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: l.words[2]}
		ev.Of = l.args["of"]
	case "admin":
		ev.Kind, ev.Message = Join, &wire.Hello{Role: wire.Role_ROLE_ADMIN}
		ev.Tenant = l.words[2] == "tenant"
	default:
		if ev.Wire, ev.Message = l.message(); ev.Message == nil {
			return ev, fmt.Errorf("no such event")
		}
		payload, err := proto.Marshal(ev.Message)
		l.bad = cmp.Or(l.bad, err)
		ev.Payload = payload
	}
	return ev, l.bad
}

// traceLine is a line of a script: its words, and what stands behind names, as in on=0,1.
type traceLine struct {
	words []string
	args  map[string]string
	why   *wire.Status
	bad   error // the first number that is none
}

func readLine(line string) *traceLine {
	l := &traceLine{args: map[string]string{}}
	if before, message, ok := strings.Cut(line, "error="); ok {
		l.args["error"], line = message, before
	}
	for _, w := range strings.Fields(line) {
		if k, v, ok := strings.Cut(w, "="); ok {
			l.args[k] = v
		} else {
			l.words = append(l.words, w)
		}
	}
	l.words = append(l.words, "", "", "") // words that are not there are empty
	l.why = &wire.Status{Code: uint32(status.Unavailable), Message: cmp.Or(l.args["error"], "it fell over")}
	return l
}

// parseList returns the numbers of a list, 0,1 for example.
func (l *traceLine) parseList(s string) (ns []uint64) {
	for f := range strings.SplitSeq(s, ",") {
		if s != "" {
			n, err := strconv.ParseUint(f, 10, 64)
			l.bad = cmp.Or(l.bad, err)
			ns = append(ns, n)
		}
	}
	return ns
}

func (l *traceLine) parse(s string) uint64        { return l.parseList(cmp.Or(s, "0"))[0] }
func (l *traceLine) numbers(name string) []uint64 { return l.parseList(l.args[name]) }
func (l *traceLine) number(name string) uint64    { return l.parse(l.args[name]) }
func (l *traceLine) devices(name string) (ns []uint32) {
	for _, n := range l.numbers(name) {
		ns = append(ns, uint32(n))
	}
	return ns
}

func (l *traceLine) worker() *wire.Hello {
	offer := &wire.WorkerOffer{Island: l.args["island"], Platform: &wire.Platform{Name: "sim"},
		Fingerprint: l.args["fingerprint"]}
	for d := range l.number("devices") {
		offer.Devices = append(offer.Devices, &wire.LocalDevice{Local: uint32(d), Kind: l.args["kind"],
			MemoryLimit: int64(l.number("memory"))})
	}
	return &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: l.words[2], Worker: offer}
}

// message returns the message of a line, nil if it says none.
func (l *traceLine) message() (wire.Kind, proto.Message) {
	first := func() uint64 { return l.parse(l.words[2]) } // of the message's own numbers
	scalar := &wire.Array{Dtype: uint32(shape.F32)}
	switch l.words[1] {
	case "compile":
		return wire.KindCompile, l.compile(first())
	case "compiled":
		return wire.KindCompiled, l.compiled(first())
	case "accepts":
		return wire.KindRebind, &wire.Rebind{Epoch: first()}
	case "want":
		return wire.KindWant, &wire.Want{Artifact: first()}
	case "have":
		return wire.KindHave, &wire.Have{Artifact: first(), No: l.words[3] == "no"}
	case "loaded":
		return wire.KindLoaded, &wire.Loaded{Session: uint32(l.number("session")), Program: first()}
	case "run":
		return wire.KindRun, l.run(first())
	case "put":
		return wire.KindPut, &wire.Put{Op: first(), Object: l.number("makes"), Array: scalar, Devices: l.devices("on")}
	case "fetch":
		return wire.KindFetch,
			&wire.Fetch{Op: first(), Object: l.number("array"), Device: uint32(l.number("device"))}
	case "transfer":
		m := &wire.Transfer{Op: first(), Object: l.number("makes"), Array: scalar}
		for move := range strings.SplitSeq(l.args["moves"], ",") {
			o, rest, _ := strings.Cut(move, ":")
			from, to, _ := strings.Cut(rest, ">")
			m.Moves = append(m.Moves,
				&wire.Move{Source: l.parse(o), From: uint32(l.parse(from)), To: uint32(l.parse(to))})
		}
		return wire.KindTransfer, m
	case "free":
		return wire.KindFree, &wire.Free{Objects: l.parseList(l.words[2])}
	case "assemble":
		return wire.KindAssemble, &wire.Assemble{Object: first(), Program: l.number("program"), Pieces: l.pieces("of")}
	case "forget":
		return wire.KindForget, &wire.Forget{Programs: l.parseList(l.words[2])}
	case "profile":
		return wire.KindProfile, &wire.Profile{Id: first(), Stop: l.words[3] == "stop"}
	case "profiled":
		return wire.KindProfiled,
			&wire.Profiled{Id: first(), Session: 1, Worker: l.parse(cmp.Or(l.args["of"], l.words[0])), Bytes: 5}
	case "slice":
		return wire.KindSliceRequest, &wire.SliceRequest{Slice: first(), Devices: uint32(l.number("devices")),
			Topology: l.devices("topology"), Island: l.args["island"], Kind: l.args["kind"],
			Exclusive: l.args["exclusive"] != "", WaitMs: l.number("wait"), Priority: int32(l.number("priority"))}
	case "release":
		return wire.KindSliceRelease, &wire.SliceRelease{Slices: l.parseList(l.words[2])}
	case "abort":
		return wire.KindAbort, &wire.Abort{Gang: first(), Status: l.why}
	case "done":
		return wire.KindCompleted, &wire.Completed{Ok: l.parseList(l.words[2]), Busy: l.numbers("took")}
	case "failed":
		return wire.KindCompleted, &wire.Completed{Failed: []*wire.Failure{{Number: first(), Status: l.why}}}
	case "beat":
		m := new(wire.Heartbeat)
		for _, what := range l.words[2:] {
			if what != "" {
				l.bad = cmp.Or(l.bad, stands(m, what))
			}
		}
		return wire.KindHeartbeat, m
	case "goodbye":
		return wire.KindGoodbye, &wire.Goodbye{}
	case "ask":
		return wire.KindAsk, &wire.Ask{Stop: l.words[2] == "stop", ApplyTenants: l.words[2] == "tenants"}
	}
	return 0, nil
}

func (l *traceLine) compile(op uint64) *wire.Compile {
	m := &wire.Compile{Op: op, Program: op, Format: "sim", Code: []byte(l.words[3])}
	var on []int
	for _, d := range l.devices("on") {
		on = append(on, int(d))
	}
	if bytes := l.number("bytes"); bytes > 0 { // the client has the text, which is known by its hash
		m.Text = wire.ContentOf(m.Code)
		m.Code, m.Text.Size = nil, bytes
	}
	if m.Options = []byte{4 << 3, 1}; on != nil { // portable
		m.Options = sim.CompileOptions(on)
	}
	return m
}

func (l *traceLine) compiled(op uint64) *wire.Compiled {
	switch {
	case l.words[3] == "cancelled":
		return &wire.Compiled{Op: op,
			Status: &wire.Status{Code: uint32(status.Cancelled), Message: "no session waits"}}
	case l.args["error"] != "":
		return &wire.Compiled{Op: op, Status: l.why, NoText: l.words[3] == "notext"}
	}
	m := &wire.Compiled{Op: op, Info: &wire.ProgramInfo{
		Name: "p", Outputs: []*wire.Array{{Dtype: uint32(shape.F32)}}, Donated: l.devices("donated"),
		Cost: &wire.Cost{TempBytes: int64(l.number("temp")), CodeBytes: int64(l.number("code")),
			AliasBytes: int64(l.number("alias"))}},
		Loadable: &wire.Loadable{Serialized: []byte("x")}}
	if l.args["alias"] != "" { // otherwise the compiler has said nothing of it
		m.Info.Cost.ArgumentBytes = 4
	}
	if l.args["form"] == "joined" {
		m.Loadable.Form = wire.Loadable_JOINED
	}
	if l.words[3] == "kept" {
		m.Loadable = &wire.Loadable{Form: m.Loadable.Form, Kept: true, Bytes: 1 << 20}
	}
	return m
}

func (l *traceLine) run(op uint64) *wire.Run {
	m := &wire.Run{Op: op, Program: l.number("program"), FirstOutput: l.number("makes"), Inputs: l.numbers("reads"),
		NotDonated: l.devices("keeps")}
	if only := l.args["only"]; only != "" {
		m.Only = uint32(l.parse(only)) + 1
	}
	if l.args["mixed"] != "" { // argument 0
		m.Inputs = append([]uint64{0}, m.Inputs...)
		m.Mixed = append(m.Mixed, &wire.Mixed{Pieces: l.pieces("mixed")})
	}
	return m
}

// pieces returns of what an array is put together: object:rows,…
func (l *traceLine) pieces(name string) (all []*wire.Piece) {
	for p := range strings.SplitSeq(l.args[name], ",") {
		o, rows, _ := strings.Cut(p, ":")
		all = append(all, &wire.Piece{Object: l.parse(o), Rows: uint32(l.parse(rows))})
	}
	return all
}

// stands adds to a heartbeat what devices compute, or stand at for so many seconds.
func stands(m *wire.Heartbeat, text string) error {
	list := func(s string) (devices []uint32) {
		for f := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == ',' }) {
			d, _ := strconv.Atoi(f)
			devices = append(devices, uint32(d))
		}
		return devices
	}
	what, rest, _ := strings.Cut(text, ":")
	rest, process, _ := strings.Cut(rest, ">")
	rest, missing, _ := strings.Cut(rest, "!")
	rest, seconds, _ := strings.Cut(rest, "/")
	number, devices, _ := strings.Cut(rest, "@")
	gang, err := strconv.ParseUint(number, 10, 64)
	if what == "computes" {
		m.Running = append(m.Running, &wire.Running{Gang: gang, Session: 1, Program: "p", Devices: list(devices)})
		return err
	}
	still, _ := strconv.ParseInt(cmp.Or(seconds, "0"), 10, 64)
	s := &wire.Standing{Gang: gang, Session: 1, Program: "p", Devices: list(devices), Missing: list(missing),
		SinceMs: 1000 * still, StillMs: 1000 * still, Awaits: "others"}
	if process != "" {
		n, _ := strconv.ParseUint(process, 10, 64)
		s.Processes = []uint64{n}
	}
	switch what {
	case "collective":
		s.At = "collective 0 (all-reduce)"
	case "calls":
		s.At = wire.AtFunction
	case "behind":
		s.Behind = true
	case "bytes":
	default:
		return fmt.Errorf("no device can %s", what)
	}
	m.Standing = append(m.Standing, s)
	return err
}
