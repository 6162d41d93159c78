package controller

import (
	"math"
	"slices"
)

// donates reports whether a gang is of a program that donates arguments.
func (g *gang) donates() bool {
	return g.program != nil && (len(g.program.of.info.Donated) > 0 ||
		g.play != nil && len(g.play.g.nodes[g.node].donates) > 0)
}

// donations calls each with every object that a run donates, and the bytes of its shards that the run's results take
// over.
func (st *State) donations(g *gang, each func(o *object, taken int64)) {
	if !g.donates() {
		return
	}
	left := g.program.of.takesOver()
	take := func(o *object) (taken int64) {
		taken = min(left, o.counted)
		left -= taken
		return taken
	}
	if g.play != nil {
		for _, object := range g.play.g.nodes[g.node].donates {
			if o := g.s.objects[g.play.object(object)]; o != nil && !o.donated && g.place.has.covers(o.place.has) {
				each(o, take(o))
			}
		}
		return
	}
	if g.run == nil {
		return
	}
	// piece is a part of an argument that consists of several objects. The same part of each is taken over, since they are
	// on different devices. An object of which the run takes only some rows keeps the others.
	piece := func(taken *int64, id uint64, rows int) {
		if o := g.s.objects[id]; o != nil && !o.donated && len(o.place.rows) == rows {
			if *taken < 0 {
				*taken = take(o)
			}
			each(o, min(*taken, o.counted))
		}
	}
	for _, i := range g.program.of.info.Donated {
		if int(i) >= len(g.run.Inputs) || slices.Contains(g.run.NotDonated, i) {
			continue
		}
		o := g.s.objects[g.run.Inputs[i]]
		switch {
		case o == nil || o.donated || !g.place.has.covers(o.place.has):
		case o.of == nil:
			each(o, take(o))
		default:
			taken := int64(-1)
			for k, id := range o.of.members {
				piece(&taken, id, o.of.rows[k])
			}
		}
	}
	for _, m := range g.run.Mixed {
		if !slices.Contains(g.program.of.info.Donated, m.Argument) || slices.Contains(g.run.NotDonated, m.Argument) {
			continue
		}
		taken := int64(-1)
		for _, p := range m.Pieces {
			piece(&taken, p.Object, int(p.Rows))
		}
	}
}

// takesOver returns how many bytes of a run's donated arrays its results take over on each device, as the compiler
// states; all of them if it does not say.
func (c *compiled) takesOver() int64 {
	if cost := c.info.GetCost(); cost.GetArgumentBytes() > 0 && cost.GetAliasBytes() >= 0 {
		return cost.GetAliasBytes()
	}
	return math.MaxInt64
}

// takeOver stops counting the arrays that a starting run donates: at once for the bytes that its results take over,
// which count as results already, and for the rest when the run has ended.
func (st *State) takeOver(g *gang) {
	if g.donates() {
		st.donations(g, func(o *object, taken int64) {
			st.ledger.Shrink(o.charge, taken)
			st.ledger.Retire(o.charge, g.s.entered+1) // its own place among the session's gangs, see list
			o.charge, o.donated = 0, true
			g.s.damage(o, errMemberDonated)
			st.stir()
		})
	}
}
