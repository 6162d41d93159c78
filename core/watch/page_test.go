package watch

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// everything is a report with something for each section of the page, and with names that are HTML.
type everything struct{}

const attack = `<img src=x onerror="document.title='taken over'">`

func (everything) Answer(ask *wire.Ask, to wire.Viewer) *wire.Report {
	r := fixed{2}.Answer(ask, to)
	r.UptimeMs = time.Now().UnixMilli() // so that it is another report each time
	r.Waits = "waits for " + attack
	w := r.Islands[0].Workers[0]
	w.Process.Number, w.SilentMs = 1, 7500
	w.Last.Running[0].Session, w.Last.Running[0].Devices, w.Last.Running[0].SinceMs = 3, []uint32{0, 1}, 3000
	w.Last.Standing = []*wire.Standing{{Devices: []uint32{0}, Gang: 9, Session: 3, Program: "jit_reduce", Line: "f.py:1",
		FirstCall: true, At: "collective 0 (all-reduce)", Awaits: "w1", SinceMs: 7000}}
	r.Sessions[0].Name = attack
	r.Sessions[0].Slices = []*wire.Report_Slice{{Slice: 1, Exclusive: true, Devices: []*wire.Span{{Worker: 1, Count: 2}}}}
	r.Sessions[0].Held = &wire.Report_Held{Operations: 2, What: "jit_held", WaitsFor: "work", WorkerName: "w0"}
	r.SliceWaits = []*wire.Report_SliceWait{{Session: 3, Devices: 4, Exclusive: true, LeftMs: -1,
		Holders: []*wire.Report_Holder{{Session: 3, Devices: 2, How: wire.HasUse}}}}
	r.Tenants = []*wire.Report_Tenant{{Name: "research", Weight: 3}, {Name: "students", Weight: 1}}
	r.Sessions[0].Tenant = "research"
	r.Sessions = append(r.Sessions, &wire.Report_SessionReport{Session: 4, Name: "other", Tenant: "students",
		Held: &wire.Report_Held{Operations: 1, What: "device_put", WaitsFor: "host-quota", WorkerName: "w0", Need: 3 << 20}})
	return r
}

// Timeline has a computation of each session, one behind the other: of 4 s on device 0 and of 2 s on device 1. What it
// shows of them begins 7.8 s before its right edge.
func (everything) Timeline(look *wire.Look) *wire.Timeline {
	lane := func(local, session uint32, gap, took uint64) *wire.Doing_Lane {
		return &wire.Doing_Lane{Local: local, Sessions: []uint32{session}, Programs: []uint32{session - 3},
			Runs: []uint32{1}, GapNs: []uint64{gap}, Ns: []uint64{took}}
	}
	row := &wire.Timeline_Row{Island: "default", Process: &wire.Process{Name: "w0", Number: 1}, Count: 2}
	if look.After == 0 {
		row.Doing = []*wire.Doing{{Programs: []string{"jit_own", "jit_theirs"}, AheadNs: 10e9,
			Lanes: []*wire.Doing_Lane{lane(0, 3, 1e9, 4e9), lane(1, 4, 5e9, 2e9)}}}
	}
	return &wire.Timeline{NowNs: 20e9, Newest: 1, Devices: 2, Shared: true, Rows: []*wire.Timeline_Row{row},
		Owners: []*wire.Timeline_Owner{{Session: 3, Tenant: "research"}, {Session: 4, Tenant: "students"}}}
}

func (everything) Traces() []*wire.Report_Trace {
	all := fixed{}.Traces()
	all[0].Tenant = "research"
	return all
}

func (everything) Trace(number uint64) []byte { return fixed{}.Trace(number) }

// tried is a script that points at the timeline everywhere, as a user's mouse does, and writes down what the page says
// of these places, and the colors of each lane's pixels.
const tried = `setTimeout(() => {
  const canvas = document.getElementById("timeline"), at = canvas.getBoundingClientRect(), said = new Set();
  for (const row of [9, 27]) for (let x = 0; x < at.width; x += 5) {
    canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: at.left + x, clientY: at.top + row }));
    const tip = document.getElementById("timeline-tip");
    if (!tip.hidden) said.add("device " + (row - 9) / 18 + " says " + [...tip.children].map(e => e.textContent).join("; "));
  }
  const painted = [9, 27].map(row => {
    const all = new Map(), dots = devicePixelRatio;
    const { data } = canvas.getContext("2d").getImageData(120 * dots, row * dots, canvas.width - 120 * dots, 1);
    for (let i = 0; i < data.length; i += 4) {
      const key = [data[i], data[i + 1], data[i + 2], data[i + 3]].join(" ");
      all.set(key, (all.get(key) ?? 0) + 4 / data.length);
    }
    return [...all].filter(([key, part]) => part > 0.02 && key.endsWith(" 255")).map(([key, part]) =>
      "lane " + (row - 9) / 18 + " is " + key + " for " + part.toFixed(1)).join(", ");
  });
  fetch(document.querySelector("#traces a").href).then(r => r.text()).then(t => document.body.append("the trace is " + t));
  // As the page of a cluster that had 3,000 sessions, of which a few are there.
  for (let i = 0; i < 3; i++)
    remember({ tenants: [], sessions: Array.from({ length: 1000 }, (_, k) =>
      ({ session: 1000 * (i + 1) + k, tenant: "students" })) });
  const bars = [...lanes.values()].reduce((n, lane) => n + lane.bars.length, 0);
  const past = { sessions: [7, 8].map(session =>
    ({ session, tenant: "students", client: "gone", use: [session, 1] })) };
  document.body.append("the plot has " + JSON.stringify(withEndedTogether(past, { sessions: [] })));
  for (let i = 3; i < 12; i++) hues.set("tenant " + i, i - 1);
  document.body.append("the eleventh has " + (ofTenant("tenant 11", 0) === ofTenant("research", 0) ? "the color of" :
    "another color than") + " the first. ");
  document.body.append([...said, ...painted, "it keeps " + known.size + " sessions and " + bars + " bars"].join(". "));
}, 2000);`

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
	site := New(Config{Source: everything{}, Log: slog.New(slog.DiscardHandler),
		TenantOf: func(token string) (string, bool) { return "research", token == "theirs" }})
	defer site.Close()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Authorization", "Bearer theirs")
		if r.URL.Path == "/tried.js" {
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write([]byte(tried))
			return
		}
		if r.URL.Path != "/" {
			site.ServeHTTP(w, r)
			return
		}
		page := httptest.NewRecorder()
		site.ServeHTTP(page, r)
		maps.Copy(w.Header(), page.Header())
		w.Header().Del("Content-Length")
		_, _ = w.Write(append(page.Body.Bytes(), `<script src="tried.js"></script>`...))
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+t.TempDir(),
		"--virtual-time-budget=5000", "--dump-dom", s.URL).Output()
	statustest.OK(t, err)
	page := string(out)
	if !strings.Contains(page, "<title>Open Pathways</title>") {
		t.Error("a name of a user was run as code")
	}
	text := strings.Join(strings.Fields(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " ")), " ")
	for _, want := range []string{"cluster c", "w0 2 × cpu", "&lt;img src=x onerror=", "jit_f", "w0/0-1 (exclusive)",
		"4 devices, exclusive",
		"2 of session 3, &lt;img src=x onerror=", "it began", "research", "jit_held",
		"device 0 has waited for 7.0 s in collective 0 (all-reduce) of jit_reduce " +
			"(operation 9, first called at f.py:1) for w1",
		"3.0 MiB of w0's machine", "its tenant's quota of host memory: its own earlier operations",
		"slice 1 of session 3, &lt;img src=x onerror=",
		"&gt; of research: 25.6 % of these devices, 1 computation",
		"session 4, other of students: 12.8 % of these devices, 1 computation",
		"device 0 says jit_own; session 3", "4000.0 ms on w0/0",
		"device 1 says a program of another tenant; session 4, other of students; 2000.0 ms on w0/1",
		`the trace is {"traceEvents":[1]}`, "step.json (2.0 KiB, compressed)",
		"it keeps 1024 sessions and 2 bars",
		"the eleventh has another color than the first",
		`the plot has [{"label":"sessions that have ended of students","color":"#f4c8b3","own":[15,2]}]`,
		"device 1 says jit_f; session 3", "on w0/1 for 3.0 s so far",
		"lane 0 is 42 120 214 255 for 0.4", "lane 1 is 224 101 43 255 for 0.2"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not show %q", want)
		}
	}
	if strings.Contains(text, "other.json") {
		t.Error("the page shows another tenant's trace")
	}
	if strings.Contains(text, "jit_theirs") {
		t.Error("the page shows the name of another tenant's program")
	}
	if !strings.Contains(page, `<span class="warn">7.5 s ago</span>`) {
		t.Error("a worker that says nothing does not stand out")
	}
	if n := strings.Count(page, "<canvas"); n < 2 {
		t.Error("nothing is drawn")
	}
	if t.Failed() {
		t.Log(text)
	}
}
