package controller

import (
	"fmt"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
	"github.com/openpathways/pathways/core/wire/wiretest"
)

func said(s *wire.Status) string {
	if s == nil {
		return "ok"
	}
	return fmt.Sprintf("%v: %s", status.Code(s.Code), s.Message)
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
		tr.printMessage(w, a)
		fmt.Fprintln(w)
	}
}

// printMessage writes what a message says.
func (tr *tracer) printMessage(w *strings.Builder, a Action) {
	switch a.Wire {
	case wire.KindGoodbye:
		m := wiretest.Decode[wire.Goodbye](tr.t, sent(a))
		fmt.Fprintf(w, "goodbye, %s", said(m.Status))
	case wire.KindCompile:
		printCompile(w, wiretest.Decode[wire.Compile](tr.t, sent(a)))
	case wire.KindGive:
		m := wiretest.Decode[wire.Give](tr.t, sent(a))
		fmt.Fprintf(w, "give text of compile %d or artifact %d to %d by transfer %d", m.Op, m.Artifact, m.To, m.Transfer)
	case wire.KindSource:
		m := wiretest.Decode[wire.Source](tr.t, sent(a))
		fmt.Fprintf(w, "artifact %d, %s, from %d by transfer %d", m.Artifact, said(m.Status), m.Content.GetProcess(),
			m.Content.GetTransfer())
	case wire.KindCompiling:
		m := wiretest.Decode[wire.Compiling](tr.t, sent(a))
		fmt.Fprintf(w, "compiling %d on %s for %d ms", m.Op, m.Worker, m.SinceMs)
	case wire.KindHeld:
		printHeld(w, wiretest.Decode[wire.Held](tr.t, sent(a)))
	case wire.KindCompiled:
		m := wiretest.Decode[wire.Compiled](tr.t, sent(a))
		fmt.Fprintf(w, "compiled %d, %s, on %v", m.Program, said(m.Status), m.Info.GetDevices())
	case wire.KindLoad:
		printLoad(w, wiretest.Decode[wire.Load](tr.t, sent(a)))
	case wire.KindForget:
		printForget(w, wiretest.Decode[wire.Forget](tr.t, sent(a)))
	case wire.KindDispatch:
		printDispatch(tr.t, w, wiretest.Decode[wire.Dispatch](tr.t, sent(a)))
	case wire.KindCompleted:
		printCompleted(w, wiretest.Decode[wire.Completed](tr.t, sent(a)))
	case wire.KindProfile:
		m := wiretest.Decode[wire.Profile](tr.t, sent(a))
		fmt.Fprintf(w, "profile %d of session %d for %d, stop %v", m.Id, m.Session, m.Client, m.Stop)
	case wire.KindProfiled:
		m := wiretest.Decode[wire.Profiled](tr.t, sent(a))
		fmt.Fprintf(w, "profiled %d by %d, %s, %d bytes", m.Id, m.Worker, said(m.Status), m.Bytes)
	case wire.KindSliceAnswer:
		printSliceAnswer(w, wiretest.Decode[wire.SliceAnswer](tr.t, sent(a)))
	case wire.KindAbort:
		m := wiretest.Decode[wire.Abort](tr.t, sent(a))
		fmt.Fprintf(w, "abort gang %d, %s", m.Gang, said(m.Status))
	case wire.KindPeers:
		printPeers(w, wiretest.Decode[wire.Peers](tr.t, sent(a)))
	case wire.KindDrop:
		m := wiretest.Decode[wire.Drop](tr.t, sent(a))
		fmt.Fprintf(w, "drop session %d, %s", m.Session, said(m.Status))
	case wire.KindSession:
		printSession(w, wiretest.Decode[wire.Session](tr.t, sent(a)))
	case wire.KindReport:
		printReport(w, wiretest.Decode[wire.Report](tr.t, sent(a)))
	case wire.KindRebind:
		printRebind(w, wiretest.Decode[wire.Rebind](tr.t, sent(a)))
	default:
		fmt.Fprintf(w, "kind %d", a.Wire)
	}
}

func printCompile(w *strings.Builder, m *wire.Compile) {
	fmt.Fprintf(w, "compile %d %s on", m.Op, m.Code)
	for _, p := range m.Places {
		fmt.Fprintf(w, " %d.%d", p.Worker, p.Local)
	}
	if m.Text != nil {
		fmt.Fprintf(w, ", %d bytes of text from %d by transfer %d", m.Text.Size, m.Text.Process, m.Text.Transfer)
	}
}

func printHeld(w *strings.Builder, m *wire.Held) {
	if h := m.Held; m.GoesOn {
		fmt.Fprintf(w, "%s goes on after %d ms", h.What, h.SinceMs)
	} else {
		fmt.Fprintf(w, "%s waits for %s of %d sessions for %d ms, fails in %d ms", h.What, h.WaitsFor,
			len(h.Holders), h.SinceMs, m.FailsInMs)
	}
}

func printLoad(w *strings.Builder, m *wire.Load) {
	fmt.Fprintf(w, "load program %d of session %d", m.Program, m.Session)
	switch {
	case m.Loadable.Kept:
		fmt.Fprintf(w, ", artifact %d, other %v,", m.Loadable.Artifact, m.Loadable.Other)
	case len(m.Loadable.Serialized) == 0:
		fmt.Fprint(w, " from its text")
	}
	fmt.Fprint(w, " on")
	for _, p := range m.Places {
		fmt.Fprintf(w, " %d.%d+%d", p.Worker, p.Local, p.Count)
	}
	if len(m.Devices) > 0 {
		fmt.Fprintf(w, " %v", wire.NumbersOf(m.Devices))
	}
	if m.LikeProgram != 0 {
		fmt.Fprintf(w, " the devices of program %d of session %d", m.LikeProgram, m.LikeSession)
	}
}

func printForget(w *strings.Builder, m *wire.Forget) {
	if len(m.Compiles) > 0 {
		fmt.Fprintf(w, "no session waits for %v", m.Compiles)
		return
	}
	if len(m.Artifacts) > 0 {
		fmt.Fprintf(w, "forget artifacts %v", m.Artifacts)
		return
	}
	fmt.Fprintf(w, "forget programs %v of session %d", m.Programs, m.Session)
}

func printDispatch(t *testing.T, w *strings.Builder, m *wire.Dispatch) {
	fmt.Fprintf(w, "gang %d of session %d for process %d: ", m.Gang, m.Session, m.Client)
	switch wire.Kind(m.Kind) {
	case wire.KindFree:
		fmt.Fprintf(w, "free %v", wiretest.Decode[wire.Free](t, m.Operation).Objects)
	case wire.KindAssemble:
		p := wiretest.Decode[wire.Assemble](t, m.Operation)
		fmt.Fprintf(w, "assemble %d on %v of", p.Object, p.Devices)
		for _, piece := range p.Pieces {
			fmt.Fprintf(w, " %d:%d", piece.Object, piece.Rows)
		}
	case wire.KindRun:
		fmt.Fprintf(w, "run %d", wiretest.Decode[wire.Run](t, m.Operation).Op)
	case wire.KindFetch:
		fmt.Fprintf(w, "fetch %d", wiretest.Decode[wire.Fetch](t, m.Operation).Op)
	case wire.KindPut:
		p := wiretest.Decode[wire.Put](t, m.Operation)
		fmt.Fprintf(w, "put %d on %v", p.Op, p.Devices)
	case wire.KindTransfer:
		p := wiretest.Decode[wire.Transfer](t, m.Operation)
		fmt.Fprintf(w, "transfer %d", p.Op)
		for _, v := range p.Moves {
			fmt.Fprintf(w, " %d:%d>%d", v.Source, v.From, v.To)
			switch {
			case v.Peer > 0:
				fmt.Fprintf(w, " (move %d, with %d)", v.Index-1, v.Peer)
			case v.Index > 0:
				fmt.Fprintf(w, " (move %d)", v.Index-1)
			}
		}
	}
}

func printCompleted(w *strings.Builder, m *wire.Completed) {
	fmt.Fprintf(w, "ended %v", m.Ok)
	for _, f := range m.Failed {
		fmt.Fprintf(w, ", %d failed, %s", f.Number, said(f.Status))
	}
	if m.HostMemory > 0 {
		fmt.Fprintf(w, ", may have %d bytes on a worker's machine", m.HostMemory)
	}
}

func printSliceAnswer(w *strings.Builder, m *wire.SliceAnswer) {
	if m.Position > 0 {
		fmt.Fprintf(w, "slice %d waits as number %d: %s", m.Slice, m.Position, m.Lacks)
		return
	}
	fmt.Fprintf(w, "slice %d, %s, is %v", m.Slice, said(m.Status), m.Devices)
}

func printPeers(w *strings.Builder, m *wire.Peers) {
	fmt.Fprint(w, "peers")
	for _, p := range m.Come {
		fmt.Fprintf(w, " +%d", p.Number)
	}
	for _, n := range m.Gone {
		fmt.Fprintf(w, " -%d (%s)", n, said(m.Why))
	}
}

func printSession(w *strings.Builder, m *wire.Session) {
	fmt.Fprintf(w, "session %d of process %d:", m.Session, m.Client.Number)
	for _, own := range m.Devices {
		fmt.Fprintf(w, " %d+%d is .%d", own.First, own.Count, own.Local)
	}
}

func printReport(w *strings.Builder, m *wire.Report) {
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
}

func printRebind(w *strings.Builder, m *wire.Rebind) {
	fmt.Fprintf(w, "offer of epoch %d:", m.Epoch)
	for _, d := range m.Devices {
		fmt.Fprintf(w, " %d is %d.%d", d.Number, d.Worker, d.Local)
	}
}
