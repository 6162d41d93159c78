package watch

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/openpathways/pathways/core/wire"
)

// metric is a metric with how to read it from a report.
type metric struct {
	name  string   // without the pathways_ that all begin with
	head  string   // the lines before its values
	parts []string // of a line: what comes before each label's value, and before the metric's
	read  func(r *wire.Report, to *lines)
}

func gauge(name, help string, labels []string, read func(*wire.Report, *lines)) metric {
	return newMetric("gauge", name, help, labels, read)
}

func counter(name, help string, labels []string, read func(*wire.Report, *lines)) metric {
	return newMetric("counter", name, help, labels, read)
}

func newMetric(kind, name, help string, labels []string, read func(*wire.Report, *lines)) metric {
	const prefix = "pathways_"
	m := metric{name: name, read: read,
		head: "# HELP " + prefix + name + " " + help + "\n# TYPE " + prefix + name + " " + kind + "\n"}
	before := prefix + name
	for i, label := range labels {
		separator := `",`
		if i == 0 {
			separator = "{"
		}
		m.parts = append(m.parts, before+separator+label+`="`)
		before = ""
	}
	if len(labels) > 0 {
		before = `"}`
	}
	m.parts = append(m.parts, before+" ")
	return m
}

// Labels of the metrics of each worker, session and tenant, sorted, as scrapers have them.
var (
	ofWorker  = []string{"island", "worker"}
	ofSession = []string{"client", "host", "session", "user"}
	ofTenant  = []string{"tenant"}
	ofKind    = []string{"island", "kind", "worker"}
	ofWay     = []string{"island", "op", "way", "worker"}
)

// perWorker tells one number of each worker.
func perWorker(number func(*wire.Report_Worker) float64) func(*wire.Report, *lines) {
	return func(r *wire.Report, to *lines) {
		for is, w := range r.EachWorker() {
			to.tell(number(w), is.Name, w.Process.GetName())
		}
	}
}

// perWay tells one number of each worker's collectives of an op that went the same way.
func perWay(number func(*wire.CollectiveCount) uint64) func(*wire.Report, *lines) {
	return func(r *wire.Report, to *lines) {
		for is, w := range r.EachWorker() {
			for _, c := range w.Last.GetCollectives() {
				to.tell(float64(number(c)), is.Name, c.Op, c.Way, w.Process.GetName())
			}
		}
	}
}

// perSession tells one number of each session.
func perSession(number func(*wire.Report_SessionReport) float64) func(*wire.Report, *lines) {
	return func(r *wire.Report, to *lines) {
		for _, s := range r.Sessions {
			to.tell(number(s), sessionLabels(s)...)
		}
	}
}

// perTenant tells one number of each tenant.
func perTenant(number func(*wire.Report_Tenant) float64) func(*wire.Report, *lines) {
	return func(r *wire.Report, to *lines) {
		for _, t := range r.Tenants {
			to.tell(number(t), t.Name)
		}
	}
}

// whole tells one number of the cluster.
func whole(number func(*wire.Report) float64) func(*wire.Report, *lines) {
	return func(r *wire.Report, to *lines) { to.tell(number(r)) }
}

var all = []metric{
	gauge("uptime_seconds", "Seconds since the controller started.", nil,
		whole(func(r *wire.Report) float64 { return float64(r.UptimeMs) / 1e3 })),
	counter("gangs_total", "Operations that were sent to workers, frees among them.", nil,
		whole(func(r *wire.Report) float64 { return float64(r.Gangs) })),
	counter("device_seconds_total", "Device time that computations have taken, of all devices and sessions.", nil,
		whole(func(r *wire.Report) float64 { return float64(r.DeviceNs) / 1e9 })),
	counter("events_total", "Events of the cluster; see pathways events.", nil,
		whole(func(r *wire.Report) float64 { return float64(r.NewestEvent) })),
	gauge("compiled_programs", "Compiled programs that can be used again.", nil,
		whole(func(r *wire.Report) float64 { return float64(r.Compiled) })),
	gauge("compiled_bytes", "Bytes of compiled programs, by who keeps them.", []string{"kept_by"},
		func(r *wire.Report, to *lines) {
			to.tell(float64(r.CompiledBytes), "controller")
			to.tell(float64(r.ArtifactBytes), "workers")
		}),
	// These have the names that Shared Pathways Service has for the same: see docs/guides/watching.md.
	gauge("num_active_users", "Users who have a session.", nil, whole(users)),
	gauge("num_users_waiting", "Users who have a request for a slice that waits.", nil, whole(usersWaiting)),
	gauge("capacity_in_use", "Devices that are in slices.", nil, whole(inSlices)),
	gauge("requested_capacity", "Devices that requests for slices want which wait.", nil,
		whole(func(r *wire.Report) (sum float64) {
			for _, w := range r.SliceWaits {
				sum += float64(w.Devices)
			}
			return sum
		})),

	gauge("devices", "Devices that are there.", []string{"island", "platform", "worker"},
		func(r *wire.Report, to *lines) {
			for is, w := range r.EachWorker() {
				to.tell(float64(len(w.Devices)), is.Name, is.Platform, w.Process.GetName())
			}
		}),
	gauge("worker_silence_seconds", "Seconds since a worker was last heard of.", ofWorker,
		perWorker(func(w *wire.Report_Worker) float64 { return float64(w.SilentMs) / 1e3 })),
	gauge("worker_gangs", "Operations under way on a worker.", ofWorker,
		perWorker(func(w *wire.Report_Worker) float64 { return float64(w.Gangs) })),
	gauge("worker_objects", "Arrays that have shards on a worker.", ofWorker,
		perWorker(func(w *wire.Report_Worker) float64 { return float64(w.Last.GetObjects()) })),
	gauge("worker_unreachable_peers", "Processes that a worker cannot reach.", ofWorker,
		perWorker(func(w *wire.Report_Worker) float64 { return float64(len(w.Last.GetApart())) })),
	counter("worker_memory_faults_total", "Operations that were admitted and got no memory all the same.", ofWorker,
		perWorker(func(w *wire.Report_Worker) float64 { return float64(w.Refused) })),
	gauge("worker_memory_bytes", "Bytes of device memory in use, of all devices of a worker.", ofWorker,
		perWorker(func(w *wire.Report_Worker) (sum float64) {
			for _, bytes := range w.Last.GetMemoryInUse() {
				sum += float64(max(bytes, 0))
			}
			return sum
		})),
	gauge("worker_memory_limit_bytes", "Bytes of device memory that arrays may take, of all devices of a worker; 0 where "+
		"no limit is known.", ofWorker,
		perWorker(func(w *wire.Report_Worker) (sum float64) {
			for _, d := range w.Devices {
				sum += float64(d.MemoryLimit)
			}
			return sum
		})),
	counter("worker_device_seconds_total", "Device time that computations have taken of a worker's devices.", ofWorker,
		perWorker(func(w *wire.Report_Worker) (sum float64) {
			for _, ns := range w.Last.GetDeviceNs() {
				sum += float64(ns) / 1e9
			}
			return sum
		})),
	counter("worker_collectives_total", "Calls of collectives by a worker's devices that succeeded, by the way of their "+
		"bytes.", ofWay, perWay((*wire.CollectiveCount).GetCalls)),
	counter("worker_collective_bytes_total", "Bytes that a worker's devices brought to collectives, by their way.",
		ofWay, perWay((*wire.CollectiveCount).GetBytes)),
	gauge("worker_counted_memory_bytes", "Device memory that the controller counts on all devices of a worker, by kind.",
		ofKind, countedMemory),
	gauge("worker_host_memory_bytes", "Bytes of its machine's memory that a worker has for arrays and programs on their "+
		"way, by kind.", ofKind, hostMemory),

	gauge("tenant_promised_share", "Part of the devices' time that a tenant gets while all tenants with sessions want "+
		"more than theirs.", ofTenant, perTenant((*wire.Report_Tenant).GetPromised)),
	gauge("tenant_got_share", "Part of the devices' time that a tenant took in the last ten seconds.", ofTenant,
		perTenant((*wire.Report_Tenant).GetGot)),
	gauge("tenant_sessions", "Sessions of a tenant.", ofTenant,
		perTenant(func(t *wire.Report_Tenant) float64 { return float64(t.Sessions) })),
	gauge("tenant_memory_bytes", "Bytes of device memory of a tenant's arrays, on all devices.", ofTenant,
		perTenant(func(t *wire.Report_Tenant) float64 { return float64(t.Bytes) })),
	gauge("tenant_memory_quota_bytes", "Bytes that a tenant's arrays may have on each device; 0 where there is no quota.",
		ofTenant, perTenant(func(t *wire.Report_Tenant) float64 { return float64(t.DeviceMemory) })),
	gauge("tenant_most_memory_bytes", "Of these, those on the device that has most; 0 where there is no quota.", ofTenant,
		perTenant(func(t *wire.Report_Tenant) float64 { return float64(t.MostBytes) })),
	gauge("tenant_host_memory_bytes", "Bytes of workers' machines' memory for a tenant's arrays on their way.",
		ofTenant, perTenant(func(t *wire.Report_Tenant) float64 { return float64(t.HostBytes) })),
	gauge("tenant_host_memory_quota_bytes", "Bytes that a tenant's operations under way may take of each worker's "+
		"machine; 0 where there is no quota.", ofTenant,
		perTenant(func(t *wire.Report_Tenant) float64 { return float64(t.HostMemory) })),
	gauge("tenant_most_host_memory_bytes", "Bytes that count against that quota, of the worker with most.", ofTenant,
		perTenant(func(t *wire.Report_Tenant) float64 { return float64(t.MostHostBytes) })),
	counter("tenant_device_seconds_total", "Device time that a tenant's computations have taken.", ofTenant,
		perTenant(func(t *wire.Report_Tenant) float64 { return float64(t.DeviceNs) / 1e9 })),

	gauge("session_age_seconds", "Seconds since a session began.", ofSession,
		perSession(func(s *wire.Report_SessionReport) float64 { return float64(s.AgeMs) / 1e3 })),
	gauge("session_devices", "Devices that a session sees.", ofSession,
		perSession(func(s *wire.Report_SessionReport) float64 { return float64(len(s.Bytes)) })),
	gauge("session_objects", "Arrays of a session.", ofSession,
		perSession(func(s *wire.Report_SessionReport) float64 { return float64(s.Objects) })),
	gauge("session_operations", "Operations of a session that have not ended.", ofSession,
		perSession(func(s *wire.Report_SessionReport) float64 { return float64(s.UnderWay) })),
	gauge("session_memory_bytes", "Bytes of device memory of a session's arrays.", ofSession,
		perSession(func(s *wire.Report_SessionReport) (sum float64) {
			for _, bytes := range s.Bytes {
				sum += float64(bytes)
			}
			return sum
		})),
	gauge("session_host_memory_bytes", "Bytes of workers' machines' memory for a session's arrays on their way.",
		ofSession, perSession(func(s *wire.Report_SessionReport) float64 { return float64(s.HostBytes) })),
	counter("session_device_seconds_total", "Device time that a session's computations have taken.", ofSession,
		perSession(func(s *wire.Report_SessionReport) float64 { return float64(s.DeviceNs) / 1e9 })),
}

func users(r *wire.Report) float64 {
	return countUsers(r, func(*wire.Report_SessionReport) bool { return true })
}

func usersWaiting(r *wire.Report) float64 {
	waits := map[uint32]bool{}
	for _, w := range r.SliceWaits {
		waits[w.Session] = true
	}
	return countUsers(r, func(s *wire.Report_SessionReport) bool { return waits[s.Session] })
}

// countUsers counts the users who have one of some sessions.
func countUsers(r *wire.Report, of func(*wire.Report_SessionReport) bool) float64 {
	names := map[[2]string]bool{}
	for _, s := range r.Sessions {
		if of(s) {
			names[[2]string{s.User, s.Host}] = true
		}
	}
	return float64(len(names))
}

// inSlices counts the devices that are in slices, each once.
func inSlices(r *wire.Report) float64 {
	type device struct {
		worker uint64
		local  uint32
	}
	devices := map[device]bool{}
	for _, s := range r.Sessions {
		for _, slice := range s.Slices {
			for _, span := range slice.Devices {
				for local := range span.Count {
					devices[device{span.Worker, span.Local + local}] = true
				}
			}
		}
	}
	return float64(len(devices))
}

func countedMemory(r *wire.Report, to *lines) {
	for is, w := range r.EachWorker() {
		for _, k := range []struct {
			kind  string
			bytes []int64
		}{{"arrays", w.ArrayBytes}, {"programs", w.ProgramBytes}, {"temporary", w.TempBytes}} {
			sum := 0.0
			for _, bytes := range k.bytes {
				sum += float64(bytes)
			}
			to.tell(sum, is.Name, k.kind, w.Process.GetName())
		}
	}
}

func hostMemory(r *wire.Report, to *lines) {
	for is, w := range r.EachWorker() {
		m := w.Last.GetHost()
		for _, k := range []struct {
			kind  string
			bytes int64
		}{{"arrays", m.GetBlocks()}, {"collectives", m.GetCollectives()}, {"transfers", m.GetAssembling()},
			{"programs", m.GetPrograms()}, {"free", m.GetFree()}, {"lent", m.GetLent()}} {
			to.tell(float64(k.bytes), is.Name, k.kind, w.Process.GetName())
		}
	}
}

// appendMetrics appends what a report says in Prometheus' text format, so that all numbers are of one moment. A
// registry would take several times as long, to find mistakes that the tests of this package find; a scrape of some
// thousand workers is megabytes, once a second.
func appendMetrics(b []byte, r *wire.Report) []byte {
	to := lines{text: b}
	for i := range all {
		to.metric, to.begun = &all[i], false
		all[i].read(r, &to)
	}
	return to.text
}

// lines is the text of metrics in the making.
type lines struct {
	text   []byte
	metric *metric // whose values come now
	begun  bool    // the first of them has come
}

// tell adds a value of the metric.
func (l *lines) tell(value float64, labels ...string) {
	b, m := l.text, l.metric
	if !l.begun {
		l.begun = true
		b = append(b, m.head...)
	}
	for i, label := range labels {
		b = appendLabel(append(b, m.parts[i]...), label)
	}
	l.text = append(appendValue(append(b, m.parts[len(labels)]...), value), '\n')
}

// appendLabel appends the value of a label, escaped where the format requires it; few values have anything to escape.
func appendLabel(b []byte, label string) []byte {
	for i := range len(label) {
		if c := label[i]; c == '\\' || c == '"' || c == '\n' {
			return append(b, inLabels.Replace(label)...)
		}
	}
	return append(b, label...)
}

var inLabels = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// appendValue appends a value. Most are whole numbers, which take a fifth of the time of others.
func appendValue(b []byte, value float64) []byte {
	const exact = 1 << 53 // up to here a float64 has every whole number
	if whole := int64(value); float64(whole) == value && -exact < whole && whole < exact {
		return strconv.AppendInt(b, whole, 10)
	}
	return strconv.AppendFloat(b, value, 'g', -1, 64)
}

func (s *Site) metrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	s.scrape.write(w, s.config.Source.Answer(Recent(), wire.Viewer{}), appendMetrics)
}

func sessionLabels(s *wire.Report_SessionReport) []string {
	return []string{s.Name, s.Host, strconv.FormatUint(uint64(s.Session), 10), s.User}
}
