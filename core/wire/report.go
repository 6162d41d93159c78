package wire

import "iter"

// EachWorker returns the workers of a report, each with its island.
func (r *Report) EachWorker() iter.Seq2[*Report_Island, *Report_Worker] {
	return func(yield func(*Report_Island, *Report_Worker) bool) {
		for _, is := range r.GetIslands() {
			for _, w := range is.Workers {
				if !yield(is, w) {
					return
				}
			}
		}
	}
}
