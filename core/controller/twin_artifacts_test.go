package controller

import (
	"crypto/sha256"
	"maps"
	"slices"

	"pgregory.net/rapid"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// Long programs of the twin: clients keep their text, and workers what it was compiled to, which they fetch from each
// other (artifact.go). Transfers succeed, fail, or end with a process, as in core/worker/artifact.go.

// twinLoad is a program that a worker is loading.
type twinLoad struct {
	*wire.Loaded
	artifact uint64 // 0 of one whose bytes came with the Load
}

// twinArtifacts is what a worker has of artifacts, by number.
type twinArtifacts struct {
	kept    map[uint64]bool       // compiled here
	offered map[uint64]bool       // loaded here, and the controller was told that others can have it
	fetches map[uint64]*twinFetch // under way
	of      map[[2]uint64]uint64  // artifacts of programs that are loaded or loading, by session
	later   []*wire.Have          // yet to be said
}

// twinFetch is an artifact that a worker waits for.
type twinFetch struct {
	asked   bool
	content *wire.Content // where it comes from, once the controller has said so
	tries   int
}

// A worker asks so often, see fetchTries of core/worker.
const twinTries = 5

func newTwinArtifacts() twinArtifacts {
	return twinArtifacts{kept: map[uint64]bool{}, offered: map[uint64]bool{}, fetches: map[uint64]*twinFetch{},
		of: map[[2]uint64]uint64{}}
}

// has reports whether others can have an artifact from here.
func (a *twinArtifacts) has(number uint64) bool { return a.kept[number] || a.offered[number] }

// startsAgain is what a worker does when the controller has started again: what came from others does not go on.
func (a *twinArtifacts) startsAgain() {
	a.later = nil // the Rejoin says what is here
	for _, f := range a.fetches {
		f.asked, f.content = false, nil
	}
}

// held returns what others can have from here.
func (a *twinArtifacts) held() []uint64 {
	return slices.Compact(slices.Sorted(func(yield func(uint64) bool) {
		for _, all := range []map[uint64]bool{a.kept, a.offered} {
			for number := range all {
				if !yield(number) {
					return
				}
			}
		}
	}))
}

// load has a worker load a program.
func (worker *twinWorker) load(m *wire.Load) {
	a, l := &worker.artifacts, twinLoad{Loaded: &wire.Loaded{Session: m.Session, Program: m.Program}}
	if m.Loadable.Kept {
		l.artifact = m.Loadable.Artifact
		shared := slices.Contains(slices.Collect(maps.Values(a.of)), l.artifact)
		a.of[[2]uint64{uint64(m.Session), m.Program}] = l.artifact
		if !shared && !a.kept[l.artifact] && a.fetches[l.artifact] == nil {
			a.fetches[l.artifact] = new(twinFetch)
		}
	}
	worker.loads = append(worker.loads, l)
}

// unload has a worker forget programs.
func (worker *twinWorker) unload(which func(session, program uint64) bool) {
	gone := func(key [2]uint64) bool { return which(key[0], key[1]) }
	maps.DeleteFunc(worker.loaded, func(key [2]uint64, _ bool) bool { return gone(key) })
	maps.DeleteFunc(worker.places, func(key [2]uint64, _ []*wire.Span) bool { return gone(key) })
	a := &worker.artifacts
	maps.DeleteFunc(a.of, func(key [2]uint64, _ uint64) bool { return gone(key) })
	for _, number := range slices.Sorted(maps.Keys(a.offered)) {
		if !slices.Contains(slices.Collect(maps.Values(a.of)), number) {
			delete(a.offered, number)
			a.later = append(a.later, &wire.Have{Artifact: number, No: true})
		}
	}
}

// loadable returns the next program whose bytes are there; -1 if there is none.
func (worker *twinWorker) loadable() int {
	return slices.IndexFunc(worker.loads, func(l twinLoad) bool { return worker.artifacts.fetches[l.artifact] == nil })
}

// fetchable returns the artifacts of which something can happen here.
func (a *twinArtifacts) fetchable() (all []uint64) {
	for _, number := range slices.Sorted(maps.Keys(a.fetches)) {
		if f := a.fetches[number]; !f.asked || f.content != nil {
			all = append(all, number)
		}
	}
	return all
}

// isBusy reports whether a worker has something to say.
func (w *twin) isBusy(worker *twinWorker) bool {
	return len(w.endable(worker))+len(worker.compiles)+len(worker.artifacts.later)+len(worker.artifacts.fetchable()) > 0 ||
		worker.loadable() >= 0
}

// fetches has a worker go on with an artifact that it lacks.
func (w *twin) fetches(number uint64, worker *twinWorker) {
	a := &worker.artifacts
	artifact := rapid.SampledFrom(a.fetchable()).Draw(w.t, "artifact")
	f := a.fetches[artifact]
	switch {
	case !f.asked:
		f.asked, f.content = true, nil
		w.say(number, wire.KindWant, &wire.Want{Artifact: artifact})
	case f.content.Process == worker.process && a.has(artifact):
		delete(a.fetches, artifact)
	case f.content.Process == worker.process || !w.isThere(f.content.Process) || w.refused[f.content.Transfer] ||
		rapid.IntRange(0, 5).Draw(w.t, "comes") == 0:
		f.asked, f.content = false, nil
		if f.tries++; f.tries == twinTries {
			delete(a.fetches, artifact)
			w.say(number, wire.KindHave, &wire.Have{Artifact: artifact, No: !a.kept[artifact]})
		}
	default:
		delete(a.fetches, artifact)
		used := slices.Contains(slices.Collect(maps.Values(a.of)), artifact) // it may be forgotten meanwhile
		if used && !a.kept[artifact] && rapid.Bool().Draw(w.t, "offers") {
			a.offered[artifact] = true
			a.later = append(a.later, &wire.Have{Artifact: artifact})
		}
		w.say(number, wire.KindHave, &wire.Have{Artifact: artifact, No: !a.kept[artifact]})
	}
}

// isThere reports whether a process is a worker that is there.
func (w *twin) isThere(process uint64) bool {
	for _, worker := range w.workers {
		if worker.process == process {
			return true
		}
	}
	return false
}

// source takes the answer to a Want.
func (w *twin) source(worker *twinWorker, m *wire.Source) {
	f := worker.artifacts.fetches[m.Artifact]
	if f == nil || !f.asked || f.content != nil {
		return // it was asked for twice, the second time behind a start
	}
	if m.Status.Err() == nil {
		if w.isStranger(worker, m.Content.Process) {
			w.t.Fatalf("process %d is to get artifact %d from process %d, of which it was not told", worker.process, m.Artifact,
				m.Content.Process)
		}
		f.content = m.Content
		return
	}
	delete(worker.artifacts.fetches, m.Artifact) // the program is loaded, and its runs fail
	for conn, other := range w.workers {
		if other.artifacts.has(m.Artifact) && len(other.artifacts.later) == 0 && !w.mute[conn] {
			w.t.Fatalf("process %d is told that artifact %d is nowhere (%v), and process %d has it", worker.process, m.Artifact,
				m.Status.Err(), other.process)
		}
	}
}

// gives has a worker send what it has of an artifact.
func (w *twin) gives(conn uint64, worker *twinWorker, m *wire.Give) {
	if w.isStranger(worker, m.To) {
		w.t.Fatalf("process %d is to send artifact %d to process %d, of which it was not told", worker.process, m.Artifact,
			m.To)
	}
	if !worker.artifacts.has(m.Artifact) {
		if len(worker.artifacts.later) == 0 && !w.mute[conn] {
			w.t.Fatalf("process %d is to send artifact %d, which it does not have", worker.process, m.Artifact)
		}
		w.refused[m.Transfer] = true
	}
}

// givesText has a client send the text of a program.
func (w *twin) givesText(c *twinClient, m *wire.Give) {
	if m.Op == 0 || m.Op > c.program {
		w.t.Fatalf("session %d is asked for the text of program %d, of %d", c.session, m.Op, c.program)
	}
	if c.waiting[m.Op] == nil && c.programs[m.Op] == nil {
		w.refused[m.Transfer] = true // it was forgotten meanwhile
	}
}

// withoutCode has a client keep the text of a program that it has compiled.
func withoutCode(m *wire.Compile) *wire.Compile {
	sum := sha256.Sum256(m.Code)
	m.Text, m.Code = &wire.Content{Size: uint64(len(m.Code)), Sha256: sum[:]}, nil
	return m
}

// compiles has a worker end a compile.
func (w *twin) compiles(number, op uint64, worker *twinWorker) {
	compile := worker.compiles[op]
	delete(worker.compiles, op)
	bad := &wire.Status{Code: uint32(status.Internal), Message: "bad luck"}
	m := &wire.Compiled{Op: op, Status: bad}
	luck := rapid.IntRange(0, 5).Draw(w.t, "luck") < 5
	switch text := compile.message.Text; {
	case compile.unwanted && rapid.Bool().Draw(w.t, "cancelled"):
		m.Status = &wire.Status{Code: uint32(status.Cancelled), Message: "no session waits for it"}
	case text.GetTransfer() != 0 && (compile.stale || w.refused[text.Transfer] ||
		!luck && rapid.Bool().Draw(w.t, "no text")):
		m.NoText = true
	case luck:
		m = &wire.Compiled{Op: op, Info: twinInfo(op), Loadable: &wire.Loadable{Collective: op%3 > 0}}
		if compile.message.Key != "" && w.isKept(compile.message.Key) {
			m.Loadable.Kept, m.Loadable.Bytes = true, 3
			worker.artifacts.kept[op] = true
		} else {
			m.Loadable.Serialized = []byte("x")
		}
	}
	w.say(number, wire.KindCompiled, m)
}

// isKept reports whether what a program is compiled to is too long for messages, which is the same each time.
func (w *twin) isKept(key string) bool { return key[0]%2 == 0 }

// artifactsAreKnown checks that workers keep no artifact that the controller does not know.
func (w *twin) artifactsAreKnown() {
	for _, worker := range w.workers {
		for number := range worker.artifacts.kept {
			if w.st.artifacts[number] == nil {
				w.t.Fatalf("process %d keeps artifact %d, which was forgotten", worker.process, number)
			}
		}
		for number, f := range worker.artifacts.fetches {
			w.t.Fatalf("process %d has no answer to where artifact %d is: %+v", worker.process, number, f)
		}
	}
}

// twinCompile is a program that a worker compiles.
type twinCompile struct {
	message  *wire.Compile
	unwanted bool
	stale    bool // of an earlier start of the controller
}
