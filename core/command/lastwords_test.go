package command

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
)

// Of the log of a process that died, the line that says why is repeated, and not the stack behind it.
func TestLastWordsAreThoseThatSayWhyAProcessEnded(t *testing.T) {
	const rendezvous = "rendezvous.cc:161] [id=2] Termination timeout for `all reduce` of 40 seconds exceeded"
	const stack = "*** Check failure stack trace: ***\n    @ 0x7f  a()\n    @ 0x7f  b()\n    @ 0x7f  c()\n"
	c := place{dir: t.TempDir()}
	for i, x := range []struct{ log, cause, words string }{
		{"hello\nF0000 00:00:1795921970.295824   17938 " + rendezvous + ".\n" +
			"F0000 00:00:1795921970.3   17937 other.cc\n" + stack, rendezvous, rendezvous},
		{"panic: no\n\ngoroutine 1 [running]:\nmain.main()\n\t/a.go:1\n", "panic: no", "panic: no"},
		{"SIGABRT: abort\nPC=0x0\n", "SIGABRT: abort", "SIGABRT: abort"},
		{"one\ntwo\nFirst 12 panics\nfour\n", "", "two\nFirst 12 panics\nfour"},
	} {
		before := "panic: of an earlier process\n"
		statustest.OK(t, os.WriteFile(filepath.Join(c.dir, "w.log"), []byte(before+x.log), 0o600))
		q := process{Name: "w", PID: 4711 + i, LogBegins: int64(len(before))}
		statustest.OK(t, c.keep([]process{{Name: "other", PID: 4710}, q}))
		statustest.Equal(t, c.causeOf(q.PID), x.cause, "why a process ended that said %q", x.log)
		statustest.Equal(t, c.causeOf(1), "", "why a process ended that is not the cluster's")
		statustest.Equal(t, lastWords(c.path("w.log"), q.LogBegins), x.words, "the last words in %q", x.log)
	}
}
