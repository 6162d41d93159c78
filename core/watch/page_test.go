package watch

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/wire"
)

// everything is a report with something for each section of the page, and with names that are HTML.
type everything struct{}

const attack = `<img src=x onerror="document.title='taken over'">`

func (everything) Answer(ask *wire.Ask, tenant bool) *wire.Report {
	r := fixed{2}.Answer(ask, tenant)
	w := r.Islands[0].Workers[0]
	w.Process.Number = 1
	w.Last.Running[0].Session, w.Last.Running[0].Devices = 3, []uint32{0, 1}
	w.Last.Waits = []string{"device 0 has waited for 7s"}
	r.Sessions[0].Name = attack
	r.Sessions[0].Slices = []*wire.Report_Slice{{Slice: 1, Exclusive: true, Devices: []*wire.Span{{Worker: 1, Count: 2}}}}
	r.Sessions[0].Held = &wire.Report_Held{Operations: 2, What: "jit_held", WaitsFor: "work", WorkerName: "w0"}
	r.SliceWaits = []*wire.Report_SliceWait{{Session: 3, Devices: 4, Exclusive: true, LeftMs: -1,
		Holders: []*wire.Report_Holder{{Session: 3, Devices: 2, How: wire.HasUse}}}}
	r.Tenants = []*wire.Report_Tenant{{Name: "research", Weight: 3}}
	return r
}

// browser is a headless Chromium, or the test is skipped.
func browser(t *testing.T) string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("the page is tried in a browser: install chromium")
	return ""
}

// A browser shows all that a report has, as text.
func TestPageInABrowser(t *testing.T) {
	chromium := browser(t)
	site := New(Config{Source: everything{}, Open: true, Log: slog.New(slog.DiscardHandler)})
	defer site.Close()
	s := httptest.NewServer(site)
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(),
		"--virtual-time-budget=3000", "--dump-dom", s.URL).Output()
	if err != nil {
		t.Fatal(err)
	}
	page := string(out)
	if !strings.Contains(page, "<title>Open Pathways</title>") {
		t.Error("a name of a user was run as code")
	}
	text := strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")), " ")
	for _, want := range []string{"cluster c", "w0 2 × cpu", "&lt;img src=x onerror=", "jit_f", "w0/0-1 (exclusive)",
		"4 devices, exclusive", "2 of session 3 (in use)", "device 0 has waited for 7s", "it began", "research", "jit_held"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not show %q", want)
		}
	}
	if n := strings.Count(page, "<canvas"); n == 0 {
		t.Error("nothing is drawn")
	}
	if t.Failed() {
		t.Log(text)
	}
}
