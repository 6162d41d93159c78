package watch

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"go.uber.org/goleak"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixed is a cluster that does not change.
type fixed struct{ devices int }

func (f fixed) Answer(ask *wire.Ask, to wire.Viewer) *wire.Report {
	w := &wire.Report_Worker{Process: &wire.Process{Name: "w0"}, Last: &wire.Heartbeat{
		MemoryInUse: []int64{5}, DeviceNs: []int64{1e9, 2e9},
		Collectives: []*wire.CollectiveCount{{Op: "all-reduce", Way: "direct", Calls: 4, Bytes: 4096}},
		Host:        &wire.HostMemory{Blocks: 7}, Running: []*wire.Running{{Program: "jit_f"}}}}
	w.ArrayBytes, w.ProgramBytes, w.TempBytes = []int64{3, 4}, []int64{1, 0}, []int64{0, 0}
	for range f.devices {
		w.Devices = append(w.Devices, &wire.LocalDevice{Kind: "cpu", MemoryLimit: 100})
	}
	if !to.IsTenant || to.Tenant == "ada" {
		w.Last.Running[0].Line = "secret.py:3"
	}
	return &wire.Report{Cluster: "c", NewestEvent: 1, Devices: uint64(f.devices),
		Events:  []*wire.Report_Event{{Number: 1, Text: "it began"}},
		Islands: []*wire.Report_Island{{Name: "default", Platform: "cpu", Workers: []*wire.Report_Worker{w}}},
		Sessions: []*wire.Report_SessionReport{{Session: 3, Name: "node:1", User: "ada", Host: "node", DeviceNs: 2e9,
			Bytes: []int64{4}}}}
}

func (f fixed) Timeline(*wire.Look) *wire.Timeline {
	return &wire.Timeline{NowNs: 20e9, Newest: 1, Devices: uint64(f.devices), Rows: []*wire.Timeline_Row{{
		Island: "default", Process: &wire.Process{Name: "w0"}, Count: uint32(f.devices)}}}
}

func (f fixed) Traces() []*wire.Report_Trace {
	return []*wire.Report_Trace{{Number: 1, Session: 3, Client: "node:1", Tenant: "ada", Name: "step.json", Bytes: 2048},
		{Number: 2, Session: 4, Name: "other.json", Tenant: "bob"}, {Number: 3, Session: 5, Name: "gone.json"}}
}

func (f fixed) Trace(number uint64) []byte {
	if number == 3 {
		return nil
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	fmt.Fprintf(z, `{"traceEvents":[%d]}`, number)
	z.Close()
	return b.Bytes()
}

// serve returns a function that asks a site at a host, with a token if there is one.
func serve(t *testing.T, c Config) func(host, path, token string) (int, string) {
	t.Helper()
	c.Log = slog.New(slog.DiscardHandler)
	site := New(c)
	t.Cleanup(site.Close)
	return func(host, path, token string) (int, string) {
		r := httptest.NewRequest(http.MethodGet, path, nil)
		r.Host = host
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		w := httptest.NewRecorder()
		site.ServeHTTP(w, r)
		body := statustest.Value(io.ReadAll(w.Result().Body)).OK(t)
		return w.Code, string(body)
	}
}

// A token opens what its role may see; without one only this machine sees something, by its own name, and no lines of
// code.
func TestTokenOpensWhatItsRoleMaySee(t *testing.T) {
	get := serve(t, Config{Source: fixed{1}, Operator: "own", Tenant: "team", Open: true,
		TenantOf: func(token string) (string, bool) { return "ada", token == "ada's" }})
	closed := serve(t, Config{Source: fixed{1}, Operator: "own", Tenant: "team"})
	without := serve(t, Config{Source: fixed{1}})
	for _, c := range []struct {
		name        string
		get         func(host, path, token string) (int, string)
		host, token string
		code        int
		lines       bool
		traces      [2]bool // ada's, bob's
	}{
		{"an operator", get, "example.org", "own", 200, true, [2]bool{true, true}},
		{"a tenant", get, "example.org", "team", 200, false, [2]bool{}},
		{"a tenant with a name", get, "example.org", "ada's", 200, true, [2]bool{true, false}},
		{"a wrong token", get, "localhost:80", "other", 401, false, [2]bool{}},
		{"no token, on this machine", get, "localhost:80", "", 200, false, [2]bool{}},
		{"no token, by this machine's address", get, "[::1]:80", "", 200, false, [2]bool{}},
		{"no token, by a name that resolves to this machine", get, "rebind.example.org", "", 401, false, [2]bool{}},
		{"no token, where others can connect", closed, "127.0.0.1", "", 401, false, [2]bool{}},
		{"an operator, where others can connect", closed, "127.0.0.1", "own", 200, true, [2]bool{true, true}},
		{"no token, where the cluster has none", without, "127.0.0.1", "", 401, false, [2]bool{}},
	} {
		for i, open := range c.traces {
			code, body := c.get(c.host, fmt.Sprint("/api/trace?number=", i+1), c.token)
			if want := fmt.Sprintf(`{"traceEvents":[%d]}`, i+1); open && (code != 200 || body != want) ||
				!open && (code == 200 || strings.Contains(body, "traceEvents")) {
				t.Errorf("%s: trace %d is %d %q, and may be seen: %v", c.name, i+1, code, body, open)
			}
		}
		for _, path := range []string{
			"/", "/page.js", "/api/status", "/api/events", "/api/history", "/api/timeline", "/api/traces", "/metrics"} {
			code, body := c.get(c.host, path, c.token)
			statustest.Equal(t, code, c.code, "%s: %s answers", c.name, path)
			if path == "/api/traces" && code == 200 {
				statustest.Equal(t, strings.Contains(body, "step.json"), c.traces[0], "%s: ada's trace is shown", c.name)
				statustest.Equal(t, strings.Contains(body, "other.json"), c.traces[1], "%s: bob's trace is shown", c.name)
			}
			if path == "/api/status" && code == 200 && strings.Contains(body, "secret.py") != c.lines {
				t.Errorf("%s: lines of code are shown: %v, in %s", c.name, !c.lines, body)
			}
		}
		for _, path := range []string{"/healthz", "/readyz"} {
			if code, body := c.get(c.host, path, c.token); code != 200 || body != "ok\n" {
				t.Errorf("%s: %s answers %d %q", c.name, path, code, body)
			}
		}
	}
	for _, path := range []string{"/nothing", "/api/events?after=x", "/api/timeline?first=-1", "/api/trace?number=x",
		"/api/trace?number=3"} {
		if code, _ := get("localhost", path, ""); code != 404 && code != 400 {
			t.Errorf("%s answers %d", path, code)
		}
	}
}

// A report is written in a form once for all. A text that has a reader stays as it is; without readers its memory is
// used for the next one.
func TestTextIsMadeOnceForAll(t *testing.T) {
	var all text
	made := 0
	form := func(b []byte, r *wire.Report) []byte {
		made++
		return append(b, r.Cluster...)
	}
	first, second := &wire.Report{Cluster: "first"}, &wire.Report{Cluster: "later"}
	read := func(r *wire.Report, meanwhile func()) {
		t.Helper()
		all.write(writer(func(b []byte) {
			meanwhile()
			statustest.Equal(t, string(b), r.Cluster, "what is read")
		}), r, form)
	}
	nothing := func() {}
	read(first, func() {
		read(first, nothing)
		statustest.Equal(t, made, 1, "texts made for one report")
		read(second, func() { read(first, nothing) })
	})
	if n := testing.AllocsPerRun(10, func() {
		all.write(io.Discard, first, form)
		all.write(io.Discard, second, form)
	}); n > 0 {
		t.Errorf("the next two texts take %v allocations; want them to reuse the memory of texts without readers", n)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) {
	w(b)
	return len(b), nil
}

// A cluster without devices is healthy, and not ready.
func TestReadyWithADevice(t *testing.T) {
	get := serve(t, Config{Source: fixed{0}})
	if code, _ := get("x", "/healthz", ""); code != 200 {
		t.Errorf("/healthz answers %d", code)
	}
	if code, body := get("x", "/readyz", ""); code != 503 || !strings.Contains(body, "device") {
		t.Errorf("/readyz answers %d %q", code, body)
	}
}

// A token in the address becomes a cookie that opens pages, and is no token; a wrong one becomes none.
func TestTokenInAddress(t *testing.T) {
	site := New(Config{Source: fixed{1}, Operator: "own"})
	defer site.Close()
	w := httptest.NewRecorder()
	site.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?token=own", nil))
	set := w.Result().Cookies()
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/" || len(set) != 1 || !set[0].HttpOnly ||
		set[0].SameSite != http.SameSiteStrictMode || strings.Contains(set[0].Value, "own") {
		t.Fatalf("it answers %d %v", w.Code, w.Header())
	}
	r := httptest.NewRequest(http.MethodGet, "/api/status", nil)
	r.AddCookie(set[0])
	w = httptest.NewRecorder()
	if site.ServeHTTP(w, r); w.Code != 200 || !strings.Contains(w.Body.String(), "secret.py") {
		t.Errorf("with the cookie it answers %d %s", w.Code, w.Body)
	}
	r = httptest.NewRequest(http.MethodGet, "/api/status", nil)
	r.Header.Set("Authorization", "Bearer "+set[0].Value)
	w = httptest.NewRecorder()
	if site.ServeHTTP(w, r); w.Code != http.StatusUnauthorized {
		t.Errorf("with the cookie as a token it answers %d", w.Code)
	}
	w = httptest.NewRecorder()
	site.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?token=other", nil))
	if w.Code != http.StatusUnauthorized || len(w.Result().Cookies()) > 0 {
		t.Errorf("with a wrong token it answers %d %v", w.Code, w.Header())
	}
}

// The guide and the dashboard name metrics that are there, and the guide names all of them.
func TestMetricsAreThoseOfTheGuide(t *testing.T) {
	there := map[string]bool{}
	for _, m := range all {
		there[m.name] = true
	}
	read := func(path string) string {
		b := statustest.Value(os.ReadFile(path)).OK(t)
		return string(b)
	}
	guide, board := read("../../docs/guides/watching.md"), read("../../examples/monitoring/grafana.json")
	if !json.Valid([]byte(board)) {
		t.Error("the dashboard is not JSON")
	}
	for _, text := range []string{guide, board} {
		named := regexp.MustCompile(`\bpathways_([a-z_]+)`).FindAllStringSubmatch(text, -1)
		if len(named) < 2 {
			t.Error("no metrics are named: they are not read as they should be")
		}
		for _, m := range named {
			if !there[m[1]] {
				t.Errorf("there is no metric %s", m[0])
			}
		}
	}
	for name := range there {
		if !strings.Contains(guide, "`"+name+"`") {
			t.Errorf("the guide does not name %s", name)
		}
	}
}

// The metrics follow Prometheus' conventions, and say what the report says.
func TestMetricsSayWhatTheReportSays(t *testing.T) {
	r := fixed{2}.Answer(new(wire.Ask), wire.Viewer{IsTenant: true})
	r.Sessions[0].Name = "node\\:\"1\"\n"
	r.Sessions[0].Slices = []*wire.Report_Slice{{Devices: []*wire.Span{{Worker: 1, Count: 2}}},
		{Devices: []*wire.Span{{Worker: 1, Local: 1, Count: 2}}}} // a device is in both
	r.SliceWaits = []*wire.Report_SliceWait{{Session: 3, Devices: 4}, {Session: 3, Devices: 1}}
	c := prometheus.GathererFunc(func() (families []*dto.MetricFamily, err error) {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		byName, err := parser.TextToMetricFamilies(bytes.NewReader(appendMetrics(nil, r)))
		for _, name := range slices.Sorted(maps.Keys(byName)) {
			families = append(families, byName[name])
		}
		return families, err
	})
	problems := statustest.Value(testutil.GatherAndLint(c)).OK(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	want := `# HELP pathways_num_users_waiting Users who have a request for a slice that waits.
# TYPE pathways_num_users_waiting gauge
pathways_num_users_waiting 1
# HELP pathways_capacity_in_use Devices that are in slices.
# TYPE pathways_capacity_in_use gauge
pathways_capacity_in_use 3
# HELP pathways_requested_capacity Devices that requests for slices want which wait.
# TYPE pathways_requested_capacity gauge
pathways_requested_capacity 5
# HELP pathways_session_device_seconds_total Device time that a session's computations have taken.
# TYPE pathways_session_device_seconds_total counter
pathways_session_device_seconds_total{client="node\\:\"1\"\n",host="node",session="3",user="ada"} 2
# HELP pathways_worker_memory_limit_bytes Bytes of device memory that arrays may take, of all devices of a worker; 0 where no limit is known.
# TYPE pathways_worker_memory_limit_bytes gauge
pathways_worker_memory_limit_bytes{island="default",worker="w0"} 200
# HELP pathways_worker_counted_memory_bytes Device memory that the controller counts on all devices of a worker, by kind.
# TYPE pathways_worker_counted_memory_bytes gauge
pathways_worker_counted_memory_bytes{island="default",kind="arrays",worker="w0"} 7
pathways_worker_counted_memory_bytes{island="default",kind="programs",worker="w0"} 1
pathways_worker_counted_memory_bytes{island="default",kind="temporary",worker="w0"} 0
# HELP pathways_worker_collective_bytes_total Bytes that a worker's devices brought to collectives, by their way.
# TYPE pathways_worker_collective_bytes_total counter
pathways_worker_collective_bytes_total{island="default",op="all-reduce",way="direct",worker="w0"} 4096
# HELP pathways_worker_collectives_total Calls of collectives by a worker's devices that succeeded, by the way of their bytes.
# TYPE pathways_worker_collectives_total counter
pathways_worker_collectives_total{island="default",op="all-reduce",way="direct",worker="w0"} 4
# HELP pathways_worker_device_seconds_total Device time that computations have taken of a worker's devices.
# TYPE pathways_worker_device_seconds_total counter
pathways_worker_device_seconds_total{island="default",worker="w0"} 3
`
	statustest.Check(t, testutil.GatherAndCompare(c, strings.NewReader(want), "pathways_session_device_seconds_total",
		"pathways_worker_counted_memory_bytes", "pathways_worker_collectives_total",
		"pathways_worker_collective_bytes_total", "pathways_worker_device_seconds_total",
		"pathways_worker_memory_limit_bytes", "pathways_num_users_waiting", "pathways_capacity_in_use",
		"pathways_requested_capacity"))
}
