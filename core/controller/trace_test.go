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
	actions := tr.st.Step(&ev, nil)
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
	var words []string
	args := map[string]string{}
	if before, message, ok := strings.Cut(line, "error="); ok {
		args["error"], line = message, before
	}
	for _, w := range strings.Fields(line) {
		if k, v, ok := strings.Cut(w, "="); ok {
			args[k] = v
		} else {
			words = append(words, w)
		}
	}
	var bad error
	numbers := func(s string) (ns []uint64) {
		for f := range strings.SplitSeq(s, ",") {
			n, err := strconv.ParseUint(f, 10, 64)
			if s != "" {
				bad = cmp.Or(bad, err)
				ns = append(ns, n)
			}
		}
		return ns
	}
	number := func(s string) uint64 { return numbers(cmp.Or(s, "0"))[0] }
	devices := func(s string) (ns []uint32) {
		for _, n := range numbers(s) {
			ns = append(ns, uint32(n))
		}
		return ns
	}
	why := &wire.Status{Code: uint32(status.Unavailable), Message: cmp.Or(args["error"], "it fell over")}
	words = append(words, "", "", "")
	switch words[0] {
	case "flush":
		return Event{Kind: Flush}, nil
	case "tick":
		seconds, err := strconv.ParseFloat(words[1], 64)
		tr.now += int64(seconds * 1e9)
		return Event{Kind: Tick}, err
	case "tenants":
		return Event{Kind: Tenants, Conn: number(args["of"]), Err: why.Err()}, bad
	case "lost":
		return Event{Kind: Lost, Conn: number(words[1]), Err: why.Err()}, bad
	}
	ev := Event{Kind: Message, Conn: number(words[0])}
	op, scalar := number("0"), &wire.Array{Dtype: uint32(shape.F32)}
	switch words[1] {
	case "run", "put", "fetch", "transfer", "abort", "compile", "compiled", "failed":
		op = number(words[2])
	}
	switch words[1] {
	case "worker":
		offer := &wire.WorkerOffer{
			Island: args["island"], Platform: &wire.Platform{Name: "sim"}, Fingerprint: args["fingerprint"]}
		for d := range number(args["devices"]) {
			offer.Devices = append(offer.Devices, &wire.LocalDevice{Local: uint32(d), Kind: args["kind"],
				MemoryLimit: int64(number(args["memory"]))})
		}
		ev.Kind, ev.Message = Join, &wire.Hello{Role: wire.Role_ROLE_WORKER, Name: words[2], Worker: offer}
		tr.slow[ev.Conn] = words[3] == "slow"
	case "client":
		ev.Kind, ev.Message = Join, &wire.Hello{Role: wire.Role_ROLE_CLIENT, Name: words[2]}
		ev.Of = args["of"]
	case "admin":
		ev.Kind, ev.Message = Join, &wire.Hello{Role: wire.Role_ROLE_ADMIN}
		ev.Tenant = words[2] == "tenant"
	case "compile":
		m := &wire.Compile{Op: op, Program: op, Format: "sim", Code: []byte(words[3])}
		var on []int
		for _, d := range devices(args["on"]) {
			on = append(on, int(d))
		}
		if bytes := number(args["bytes"]); bytes > 0 { // the client has the text, which is known by its hash
			m.Text = wire.ContentOf(m.Code)
			m.Code, m.Text.Size = nil, bytes
		}
		if m.Options = []byte{4 << 3, 1}; on != nil { // portable
			m.Options = sim.CompileOptions(on)
		}
		ev.Wire, ev.Message = wire.KindCompile, m
	case "compiled":
		m := &wire.Compiled{Op: op, Info: &wire.ProgramInfo{
			Name: "p", Outputs: []*wire.Array{scalar}, Donated: devices(args["donated"]),
			Cost: &wire.Cost{TempBytes: int64(number(args["temp"])), CodeBytes: int64(number(args["code"])),
				AliasBytes: int64(number(args["alias"]))}},
			Loadable: &wire.Loadable{Serialized: []byte("x")}}
		if args["alias"] != "" { // otherwise the compiler has said nothing of it
			m.Info.Cost.ArgumentBytes = 4
		}
		if args["form"] == "joined" {
			m.Loadable.Form = wire.Loadable_JOINED
		}
		if words[3] == "kept" {
			m.Loadable = &wire.Loadable{Form: m.Loadable.Form, Kept: true, Bytes: 1 << 20}
		}
		if args["error"] != "" {
			m = &wire.Compiled{Op: op, Status: why, NoText: words[3] == "notext"}
		}
		if words[3] == "cancelled" {
			m = &wire.Compiled{Op: op, Status: &wire.Status{Code: uint32(status.Cancelled), Message: "no session waits"}}
		}
		ev.Wire, ev.Message = wire.KindCompiled, m
	case "accepts":
		ev.Wire, ev.Message = wire.KindRebind, &wire.Rebind{Epoch: number(words[2])}
	case "want":
		ev.Wire, ev.Message = wire.KindWant, &wire.Want{Artifact: number(words[2])}
	case "have":
		ev.Wire, ev.Message = wire.KindHave, &wire.Have{Artifact: number(words[2]), No: words[3] == "no"}
	case "loaded":
		ev.Wire = wire.KindLoaded
		ev.Message = &wire.Loaded{Session: uint32(number(args["session"])), Program: number(words[2])}
	case "run":
		m := &wire.Run{Op: op, Program: number(args["program"]), FirstOutput: number(args["makes"]),
			Inputs: numbers(args["reads"]), NotDonated: devices(args["keeps"])}
		if only := args["only"]; only != "" {
			m.Only = uint32(number(only)) + 1
		}
		if mixed := args["mixed"]; mixed != "" { // argument 0: object:rows,…
			m.Inputs = append([]uint64{0}, m.Inputs...)
			x := new(wire.Mixed)
			for p := range strings.SplitSeq(mixed, ",") {
				o, rows, _ := strings.Cut(p, ":")
				x.Pieces = append(x.Pieces, &wire.Piece{Object: number(o), Rows: uint32(number(rows))})
			}
			m.Mixed = append(m.Mixed, x)
		}
		ev.Wire, ev.Message = wire.KindRun, m
	case "put":
		ev.Wire, ev.Message = wire.KindPut,
			&wire.Put{Op: op, Object: number(args["makes"]), Array: scalar, Devices: devices(args["on"])}
	case "fetch":
		ev.Wire, ev.Message = wire.KindFetch,
			&wire.Fetch{Op: op, Object: number(args["array"]), Device: uint32(number(args["device"]))}
	case "transfer":
		m := &wire.Transfer{Op: op, Object: number(args["makes"]), Array: scalar}
		for move := range strings.SplitSeq(args["moves"], ",") {
			o, rest, _ := strings.Cut(move, ":")
			from, to, _ := strings.Cut(rest, ">")
			m.Moves = append(m.Moves, &wire.Move{Source: number(o), From: uint32(number(from)), To: uint32(number(to))})
		}
		ev.Wire, ev.Message = wire.KindTransfer, m
	case "free":
		ev.Wire, ev.Message = wire.KindFree, &wire.Free{Objects: numbers(words[2])}
	case "assemble":
		m := &wire.Assemble{Object: number(words[2]), Program: number(args["program"])}
		for p := range strings.SplitSeq(args["of"], ",") {
			o, rows, _ := strings.Cut(p, ":")
			m.Pieces = append(m.Pieces, &wire.Piece{Object: number(o), Rows: uint32(number(rows))})
		}
		ev.Wire, ev.Message = wire.KindAssemble, m
	case "forget":
		ev.Wire, ev.Message = wire.KindForget, &wire.Forget{Programs: numbers(words[2])}
	case "profile":
		ev.Wire, ev.Message = wire.KindProfile, &wire.Profile{Id: number(words[2]), Stop: words[3] == "stop"}
	case "profiled":
		ev.Wire, ev.Message = wire.KindProfiled,
			&wire.Profiled{Id: number(words[2]), Session: 1, Worker: number(cmp.Or(args["of"], words[0])), Bytes: 5}
	case "slice":
		ev.Wire, ev.Message = wire.KindSliceRequest, &wire.SliceRequest{
			Slice: number(words[2]), Devices: uint32(number(args["devices"])),
			Topology: devices(args["topology"]), Island: args["island"], Kind: args["kind"],
			Exclusive: args["exclusive"] != "", WaitMs: number(args["wait"]), Priority: int32(number(args["priority"]))}
	case "release":
		ev.Wire, ev.Message = wire.KindSliceRelease, &wire.SliceRelease{Slices: numbers(words[2])}
	case "abort":
		ev.Wire, ev.Message = wire.KindAbort, &wire.Abort{Gang: op, Status: why}
	case "done":
		ev.Wire, ev.Message = wire.KindCompleted, &wire.Completed{Ok: numbers(words[2]), Busy: numbers(args["took"])}
	case "failed":
		ev.Wire, ev.Message = wire.KindCompleted, &wire.Completed{Failed: []*wire.Failure{{Number: op, Status: why}}}
	case "beat":
		m := new(wire.Heartbeat)
		for _, what := range words[2:] {
			if what != "" {
				bad = cmp.Or(bad, stands(m, what))
			}
		}
		ev.Wire, ev.Message = wire.KindHeartbeat, m
	case "goodbye":
		ev.Wire, ev.Message = wire.KindGoodbye, &wire.Goodbye{}
	case "ask":
		ev.Wire, ev.Message = wire.KindAsk, &wire.Ask{Stop: words[2] == "stop", ApplyTenants: words[2] == "tenants"}
	default:
		return ev, fmt.Errorf("no such event")
	}
	if ev.Kind == Message {
		payload, err := proto.Marshal(ev.Message)
		bad = cmp.Or(bad, err)
		ev.Payload = payload
	}
	return ev, bad
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
		s.At = "all-reduce 0"
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

func said(s *wire.Status) string {
	if s == nil {
		return "ok"
	}
	return fmt.Sprintf("%v: %s", status.Code(s.Code), s.Message)
}

// decoded returns the message of an action.
func decoded[M any, P interface {
	*M
	proto.Message
}](w *strings.Builder, a Action) P {
	m := P(new(M))
	if err := proto.Unmarshal(sent(a), m); err != nil {
		fmt.Fprintf(w, "  does not decode: %v\n", err)
	}
	return m
}

// print writes an action, but for what is said to people alone.
func (tr *tracer) print(w *strings.Builder, a Action) {
	to := strings.Trim(fmt.Sprint(a.To), "[]")
	switch a.Kind {
	case Welcome:
		fmt.Fprintf(w, "  → %s: welcome, process %d", to, a.Message.Process)
		if a.Complete != nil {
			a.Complete()
		}
		for _, d := range a.Message.Devices {
			fmt.Fprintf(w, ", %d is %d.%d/%d", d.Number, d.Worker, d.Local, d.Slice)
		}
		fmt.Fprintln(w)
	case Refuse:
		fmt.Fprintf(w, "  → %s: refused, %s\n", to, said(wire.Of(a.Err)))
	case Close:
		fmt.Fprintf(w, "  → %s: close\n", to)
	case Stop:
		fmt.Fprintln(w, "  stop")
	case Reload:
		fmt.Fprintf(w, "  read the file of tenants for %s\n", to)
	case Send:
		fmt.Fprintf(w, "  → %s: ", to)
		switch a.Wire {
		case wire.KindGoodbye:
			m := decoded[wire.Goodbye](w, a)
			fmt.Fprintf(w, "goodbye, %s", said(m.Status))
		case wire.KindCompile:
			m := decoded[wire.Compile](w, a)
			fmt.Fprintf(w, "compile %d %s on", m.Op, m.Code)
			for _, p := range m.Places {
				fmt.Fprintf(w, " %d.%d", p.Worker, p.Local)
			}
			if m.Text != nil {
				fmt.Fprintf(w, ", %d bytes of text from %d by transfer %d", m.Text.Size, m.Text.Process, m.Text.Transfer)
			}
		case wire.KindGive:
			m := decoded[wire.Give](w, a)
			fmt.Fprintf(w, "give text of compile %d or artifact %d to %d by transfer %d", m.Op, m.Artifact, m.To, m.Transfer)
		case wire.KindSource:
			m := decoded[wire.Source](w, a)
			fmt.Fprintf(w, "artifact %d, %s, from %d by transfer %d", m.Artifact, said(m.Status), m.Content.GetProcess(),
				m.Content.GetTransfer())
		case wire.KindCompiling:
			m := decoded[wire.Compiling](w, a)
			fmt.Fprintf(w, "compiling %d on %s for %d ms", m.Op, m.Worker, m.SinceMs)
		case wire.KindHeld:
			m := decoded[wire.Held](w, a)
			if h := m.Held; m.GoesOn {
				fmt.Fprintf(w, "%s goes on after %d ms", h.What, h.SinceMs)
			} else {
				fmt.Fprintf(w, "%s waits for %s of %d sessions for %d ms, fails in %d ms", h.What, h.WaitsFor,
					len(h.Holders), h.SinceMs, m.FailsInMs)
			}
		case wire.KindCompiled:
			m := decoded[wire.Compiled](w, a)
			fmt.Fprintf(w, "compiled %d, %s, on %v", m.Program, said(m.Status), m.Info.GetDevices())
		case wire.KindLoad:
			m := decoded[wire.Load](w, a)
			fmt.Fprintf(w, "load program %d of session %d", m.Program, m.Session)
			switch {
			case m.Loadable.Kept:
				fmt.Fprintf(w, ", artifact %d, other %v,", m.Loadable.Artifact, m.Loadable.Other)
			case len(m.Loadable.Serialized) == 0:
				fmt.Fprint(w, " from its text")
			}
			fmt.Fprint(w, " on")
			for _, p := range m.Places {
				fmt.Fprintf(w, " %d.%d", p.Worker, p.Local)
			}
		case wire.KindForget:
			m := decoded[wire.Forget](w, a)
			if len(m.Compiles) > 0 {
				fmt.Fprintf(w, "no session waits for %v", m.Compiles)
				break
			}
			if len(m.Artifacts) > 0 {
				fmt.Fprintf(w, "forget artifacts %v", m.Artifacts)
				break
			}
			fmt.Fprintf(w, "forget programs %v of session %d", m.Programs, m.Session)
		case wire.KindDispatch:
			m := decoded[wire.Dispatch](w, a)
			fmt.Fprintf(w, "gang %d of session %d for process %d: ", m.Gang, m.Session, m.Client)
			if wire.Kind(m.Kind) == wire.KindFree {
				f := new(wire.Free)
				if err := proto.Unmarshal(m.Operation, f); err != nil {
					fmt.Fprint(w, err)
				}
				fmt.Fprintf(w, "free %v", f.Objects)
				break
			}
			if wire.Kind(m.Kind) == wire.KindAssemble {
				p := new(wire.Assemble)
				_ = proto.Unmarshal(m.Operation, p)
				fmt.Fprintf(w, "assemble %d on %v of", p.Object, p.Devices)
				for _, piece := range p.Pieces {
					fmt.Fprintf(w, " %d:%d", piece.Object, piece.Rows)
				}
				break
			}
			op := new(wire.Fetch) // all have op as field 1
			_ = proto.Unmarshal(m.Operation, op)
			names := map[wire.Kind]string{wire.KindRun: "run", wire.KindPut: "put", wire.KindTransfer: "transfer",
				wire.KindFetch: "fetch"}
			fmt.Fprintf(w, "%s %d", names[wire.Kind(m.Kind)], op.Op)
			switch wire.Kind(m.Kind) {
			case wire.KindPut:
				p := new(wire.Put)
				_ = proto.Unmarshal(m.Operation, p)
				fmt.Fprintf(w, " on %v", p.Devices)
			case wire.KindTransfer:
				p := new(wire.Transfer)
				_ = proto.Unmarshal(m.Operation, p)
				for _, v := range p.Moves {
					fmt.Fprintf(w, " %d:%d>%d", v.Source, v.From, v.To)
					if v.Index > 0 {
						fmt.Fprintf(w, " (move %d)", v.Index-1)
					}
				}
			}
		case wire.KindCompleted:
			m := decoded[wire.Completed](w, a)
			fmt.Fprintf(w, "ended %v", m.Ok)
			for _, f := range m.Failed {
				fmt.Fprintf(w, ", %d failed, %s", f.Number, said(f.Status))
			}
		case wire.KindProfile:
			m := decoded[wire.Profile](w, a)
			fmt.Fprintf(w, "profile %d of session %d for %d, stop %v", m.Id, m.Session, m.Client, m.Stop)
		case wire.KindProfiled:
			m := decoded[wire.Profiled](w, a)
			fmt.Fprintf(w, "profiled %d by %d, %s, %d bytes", m.Id, m.Worker, said(m.Status), m.Bytes)
		case wire.KindSliceAnswer:
			m := decoded[wire.SliceAnswer](w, a)
			if m.Position > 0 {
				fmt.Fprintf(w, "slice %d waits as number %d: %s", m.Slice, m.Position, m.Lacks)
				break
			}
			fmt.Fprintf(w, "slice %d, %s, is %v", m.Slice, said(m.Status), m.Devices)
		case wire.KindAbort:
			m := decoded[wire.Abort](w, a)
			fmt.Fprintf(w, "abort gang %d, %s", m.Gang, said(m.Status))
		case wire.KindPeers:
			m := decoded[wire.Peers](w, a)
			fmt.Fprint(w, "peers")
			for _, p := range m.Come {
				fmt.Fprintf(w, " +%d", p.Number)
			}
			for _, n := range m.Gone {
				fmt.Fprintf(w, " -%d (%s)", n, said(m.Why))
			}
		case wire.KindDrop:
			m := decoded[wire.Drop](w, a)
			fmt.Fprintf(w, "drop session %d, %s", m.Session, said(m.Status))
		case wire.KindSession:
			m := decoded[wire.Session](w, a)
			fmt.Fprintf(w, "session %d of process %d:", m.Session, m.Client.Number)
			for _, s := range m.Devices {
				fmt.Fprintf(w, " %d.%d+%d", s.Worker, s.Local, s.Count)
			}
		case wire.KindReport:
			m := decoded[wire.Report](w, a)
			fmt.Fprint(w, "report")
			for _, is := range m.Islands {
				fmt.Fprintf(w, ", island %q", is.Name)
				for _, x := range is.Workers {
					fmt.Fprintf(w, " %s (%d devices, %d gangs)", x.Process.Name, len(x.Devices), x.Gangs)
				}
			}
			for _, s := range m.Sessions {
				fmt.Fprintf(w, ", session %d of %s: %d arrays, %d programs, %d under way, bytes %v", s.Session, s.Name, s.Objects,
					s.Programs, s.UnderWay, s.Bytes)
				if h := s.Held; h != nil {
					fmt.Fprintf(w, ", %d held for %d ms, %s needs %d on %s/%d and waits for %s", h.Operations, h.SinceMs, h.What,
						h.Need, h.WorkerName, h.Local, h.WaitsFor)
					for _, x := range h.Holders {
						fmt.Fprintf(w, " %s (%d)", wire.Owner(x.Session, x.Client, x.User, x.Host), x.Bytes)
					}
				}
				if s.Lacks != "" {
					fmt.Fprintf(w, ", %s", s.Lacks)
				}
				for _, x := range s.Slices {
					fmt.Fprintf(w, ", slice %d is", x.Slice)
					for _, p := range x.Devices {
						fmt.Fprintf(w, " %d.%d+%d", p.Worker, p.Local, p.Count)
					}
				}
			}
		case wire.KindRebind:
			m := decoded[wire.Rebind](w, a)
			fmt.Fprintf(w, "offer of epoch %d:", m.Epoch)
			for _, d := range m.Devices {
				fmt.Fprintf(w, " %d is %d.%d", d.Number, d.Worker, d.Local)
			}
		default:
			fmt.Fprintf(w, "kind %d", a.Wire)
		}
		fmt.Fprintln(w)
	}
}
