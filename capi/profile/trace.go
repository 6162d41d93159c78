package profile

import (
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/observe"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
)

// tracing is the pathways.trace under way, if there is one.
var tracing struct {
	mu   sync.Mutex // guards the rest; only StartTrace, which creates the file under it, and StopTrace take it
	file *os.File   // not nil from before it begins until it is written
	r    *recording // not nil while it records
}

// StartTrace begins to record into a file, for Perfetto.
//
// Errors: FAILED_PRECONDITION if a trace is already being recorded, and those of system.Error if the file cannot be
// created.
func StartTrace(path string) error {
	tracing.mu.Lock()
	defer tracing.mu.Unlock()
	if tracing.file != nil {
		return status.New(status.FailedPrecondition, "a trace is already being recorded; end it before you begin another")
	}
	file, err := os.Create(path)
	if err != nil {
		return system.Error(err, "cannot write the trace")
	}
	tracing.file, tracing.r = file, start()
	return nil
}

// StopTrace ends the trace and writes its file.
//
// Errors: FAILED_PRECONDITION if no trace is being recorded, and those of system.Error if the file cannot be written:
// RESOURCE_EXHAUSTED for a full disk.
func StopTrace() error {
	tracing.mu.Lock()
	file, r := tracing.file, tracing.r
	tracing.r = nil
	tracing.mu.Unlock()
	if r == nil {
		return status.New(status.FailedPrecondition, "no trace is being recorded")
	}
	all := observe.Recorded{Began: r.began}
	profiles := r.stop()
	missing(profiles)
	for _, p := range profiles {
		all.Spans, all.Dropped = append(all.Spans, p.Spans...), all.Dropped+p.Dropped
		all.Devices, all.Events = append(all.Devices, p.Devices...), append(all.Events, p.Events...)
	}
	took := time.Duration(time.Now().UnixNano() - r.began)
	most := mostKept(profiles)
	copied := observe.NewCopy(most)
	to := io.Writer(file)
	if most > 0 {
		to = io.MultiWriter(file, copied)
	}
	err := observe.WritePerfetto(to, os.Getpid(), all)
	if e := file.Close(); err == nil {
		err = e
	}
	if most > 0 {
		keep(profiles, filepath.Base(file.Name()), took, copied.End(&all, os.Getpid(), took, file.Name()))
	}
	tracing.mu.Lock()
	tracing.file = nil
	tracing.mu.Unlock()
	return system.Error(err, "the trace was not written completely")
}

// mostKept returns how long a copy may be that all clusters keep which keep any, in bytes; 0: none does.
func mostKept(profiles []Profile) (most int) {
	for _, p := range profiles {
		if p.Keep != nil && (most == 0 || p.MaxTrace < most) {
			most = p.MaxTrace
		}
	}
	return most
}

// keep has clusters keep a trace.
func keep(profiles []Profile, name string, took time.Duration, trace []byte) {
	for _, p := range profiles {
		if p.Keep != nil && trace != nil {
			p.Keep(name, took, trace)
		}
	}
}
