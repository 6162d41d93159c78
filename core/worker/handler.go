package worker

import (
	"strings"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/wire"
)

// missing says why handlers of clients could not become this process's, by target.
// That counts only where a program turns out to call one.
type missing map[string]error

// handlers makes handlers of a client's, which a program may call, this process's.
//
// Errors: ALREADY_EXISTS where the program would call another client's instead.
func (w *Worker) handlers(all []*wire.Handler) (why missing, err error) {
	for _, h := range all {
		if w.config.Handler == nil {
			break
		}
		err := w.config.Handler(h)
		if status.CodeOf(err) == status.AlreadyExists {
			return nil, err
		}
		if err != nil {
			if why == nil {
				why = missing{}
			}
			why[h.Target] = err
		}
	}
	return why, nil
}

// explain adds to an error of a compiler, that it lacks a handler, why that is so.
func (why missing) explain(err error) error {
	if err == nil {
		return nil
	}
	for target, reason := range why {
		if strings.Contains(err.Error(), target) {
			return status.New(status.CodeOf(err), "%w; %w", err, reason)
		}
	}
	return err
}
