package controller

import (
	"slices"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// The controller never has long program texts and long executables. The text stays with the clients that have it until
// a worker has compiled it. The result, the artifact, stays with that worker and with those that have loaded it. This
// file decides which process sends what to which other one.
//
// Text: a program is named by its SHA-256, which the worker that receives the text checks. When a worker is told to
// compile, the first client that waits for the program is told to send it the text. If that fails, because the client
// has left or sends something else, only this client gets an error, and the next one that waits sends it.
//
// Artifacts: a worker that has to load one, and does not have it, asks for it (Want). As soon as one of those that have
// it sends it to fewer than maxGiven others, the worker is told that this one sends it (Source), and this one is told
// to send (Give). A worker that has loaded it says so (Have), and sends it, too, from then on, so a thousand workers
// have it after five rounds. Only workers that have all of it send, so workers never wait in a circle. A receiver whose
// sender is lost notices that by itself and asks again. When no worker has the artifact any more, it is compiled again
// for those that ask (again.go), and the next Compile of the program makes a new one. Members of an epoch do not offer
// what they have loaded, since others may need the code instead; the worker that compiled it has both.

// artifact is what the controller knows about a compiled program whose bytes workers have.
type artifact struct {
	of              *compiled
	senders         senders
	wants           []*worker // that wait for one of the holders to have time; next passes over those that have gone
	wanted          map[*worker]bool
	bytes           int64 // that the worker keeps which compiled it
	links[artifact]       // in the list of all
}

type artifacts = linkedList[artifact, *artifact]

// newArtifact makes the artifact of a program.
func (st *State) newArtifact(c *compiled) {
	c.artifact = &artifact{of: c, bytes: c.loadable.Bytes, wanted: map[*worker]bool{}}
	st.artifacts[c.number] = c
	st.away.add(c.artifact)
}

// next returns the worker that waits first, nil if none does.
func (a *artifact) next() *worker {
	for len(a.wants) > 0 {
		if w := a.wants[0]; w.gone == nil {
			return w
		}
		a.serves()
	}
	return nil
}

// serves removes the worker that waits first.
func (a *artifact) serves() {
	delete(a.wanted, a.wants[0])
	a.wants = a.wants[1:]
}

// transferNumber returns a number for a transfer, never used again.
func (st *State) transferNumber() uint64 {
	st.moved++
	return st.moved
}

// sendText tells the client of a waiter to send a program's text to the worker that compiles it.
func (st *State) sendText(c *compiled, w waiter) *wire.Content {
	st.tell(w.s, setOf(c.by.slot)) // which it takes bytes from
	number := st.transferNumber()
	c.source = w
	st.send(w.s.to(), wire.KindGive, &wire.Give{Op: w.op, To: c.by.process.Number, Transfer: number})
	return &wire.Content{Size: c.text.Size, Sha256: c.text.Sha256, Process: w.s.process.Number, Transfer: number}
}

// noText ends the wait of the client that should have sent a program's text, if it still waits, and compiles the
// program with the text of another one.
func (st *State) noText(c *compiled, err error) {
	is := func(w waiter) bool { return w.s == c.source.s && w.program == c.source.program }
	if i := slices.IndexFunc(c.waiting, is); i >= 0 {
		w := c.waiting[i]
		c.waiting = slices.Delete(c.waiting, i, i+1)
		st.notCompiled(w, err)
	}
	st.begin(c)
}

// keepArtifact records that a worker keeps what it has compiled.
func (st *State) keepArtifact(c *compiled, by *worker) {
	st.newArtifact(c)
	c.artifact.senders.add(by)
}

// dropArtifact tells workers to forget a program that no session will load any more.
func (st *State) dropArtifact(c *compiled) {
	a := c.artifact
	if a == nil {
		return
	}
	delete(st.artifacts, c.number)
	st.away.remove(a) // and if it is a losing.artifact, it leads to the next
	var to []uint64
	for _, w := range a.senders.holders {
		if w.gone == nil {
			to = append(to, w.to[0])
		}
	}
	if len(to) > 0 {
		st.send(to, wire.KindForget, &wire.Forget{Artifacts: []uint64{c.number}})
	}
	st.nowhere(c, errForgotten)
	a.senders = senders{}
	if c.by != nil { // which compiles it again
		st.send(c.by.to[:], wire.KindForget, &wire.Forget{Compiles: []uint64{c.op}})
	}
}

// want handles a worker's request for an artifact.
func (st *State) want(w *worker, number uint64) {
	c := st.artifacts[number]
	if c == nil {
		st.noSource(w, number, errForgotten)
		return
	}
	a := c.artifact
	a.senders.ended(w) // what was on its way to it has failed
	if !a.wanted[w] {
		a.wanted[w] = true
		a.wants = append(a.wants, w)
	}
	st.give(c)
}

// errForgotten is the answer to requests for an artifact that is no longer known.
var errForgotten = status.New(status.Unavailable,
	"no session has the compiled program any more; compile it again, for example with jax.clear_caches()")

func (st *State) noSource(w *worker, number uint64, why error) {
	st.send(w.to[:], wire.KindSource, &wire.Source{Artifact: number, Status: wire.Of(why)})
}

// give has an artifact sent to those that wait for it, as far as its holders have time. A worker that already has it is
// told so.
func (st *State) give(c *compiled) {
	a := c.artifact
	if len(a.senders.holders) == 0 {
		st.again(c)
		return
	}
	for to := a.next(); to != nil; to = a.next() {
		from := a.senders.pick(to)
		if from == nil && !a.senders.held[to] {
			return
		}
		a.serves()
		if a.senders.held[to] { // since it has asked
			st.send(to.to[:], wire.KindSource, &wire.Source{Artifact: c.number,
				Content: &wire.Content{Process: to.process.Number}})
			continue
		}
		in := st.introductions()
		in.pair(from.slot, to.slot)
		in.tell()
		number := st.transferNumber()
		a.senders.begin(from, to)
		st.send(from.to[:], wire.KindGive, &wire.Give{Artifact: c.number, To: to.process.Number, Transfer: number})
		st.send(to.to[:], wire.KindSource, &wire.Source{Artifact: c.number,
			Content: &wire.Content{Process: from.process.Number, Transfer: number}})
	}
}

// have handles a worker's report of whether it has an artifact.
func (st *State) have(w *worker, m *wire.Have) {
	c := st.artifacts[m.Artifact]
	if c == nil {
		if !m.No { // it was dropped meanwhile
			st.send(w.to[:], wire.KindForget, &wire.Forget{Artifacts: []uint64{m.Artifact}})
		}
		return
	}
	a := c.artifact
	a.senders.ended(w)
	switch held := a.senders.held[w]; {
	case m.No && held:
		st.lacks(c, w)
	case !m.No && !held:
		a.senders.add(w)
	}
	st.give(c)
}

// lacks removes a worker from those that have an artifact.
func (st *State) lacks(c *compiled, w *worker) {
	a := c.artifact
	a.senders.remove(w)
	if len(a.senders.holders) == 0 {
		st.discard(c)
	}
}

// discard prevents further sessions from using a program. Sessions that have it keep it.
func (st *State) discard(c *compiled) {
	if st.compiled[c.key] != c {
		return
	}
	st.unmake(c)
	if c.users == 0 {
		st.idle = slices.DeleteFunc(st.idle, func(o *compiled) bool { return o == c })
		st.letCompiled(c)
		st.dropArtifact(c)
		return
	}
	st.discarded[c.key]++
}

// loseArtifact records that an artifact is no longer on a worker that is lost, nor on its way from or to it. It reports
// whether one of these was the case. If the worker waits for the artifact, next passes over it when its turn comes.
func (st *State) loseArtifact(w *worker, a *artifact) bool {
	if !a.senders.has(w) {
		return false
	}
	a.senders.lost(w)
	if a.senders.held[w] {
		st.lacks(a.of, w)
	}
	st.give(a.of)
	return true
}
