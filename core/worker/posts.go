package worker

// posts are parts that reach their queues together. The goroutine that reads the
// connection owns it.
type posts struct {
	queues []*queue
	parts  [][]note // by local device
	slow   bool     // one of them may take its time
}

// add adds a part. Quick says that it may be begun by whoever reads the connection.
func (p *posts) add(q *queue, x part, quick bool) {
	for len(p.parts) <= q.local {
		p.parts = append(p.parts, nil)
	}
	if len(p.parts[q.local]) == 0 {
		p.queues = append(p.queues, q)
	}
	p.parts[q.local] = append(p.parts[q.local], note{part: x})
	p.slow = p.slow || !quick
}

// leave hands the parts to their queues. It never waits. Where all are quick and
// here is true, it begins them itself on queues that sleep.
func (p *posts) leave(here bool) {
	here = here && !p.slow
	p.slow = false
	for _, q := range p.queues {
		parts := p.parts[q.local]
		if here && q.borrow() {
			for _, n := range parts {
				q.accept(n.part)
			}
			q.giveBack()
		} else {
			q.postParts(parts)
		}
		clear(parts)
		p.parts[q.local] = parts[:0]
	}
	clear(p.queues)
	p.queues = p.queues[:0]
}
