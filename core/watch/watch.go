// Package watch shows a cluster to people and to their monitoring, over HTTP: a web page, metrics for Prometheus,
// health, and the report and events as JSON.
//
// It only asks: nothing that it serves changes the cluster. It asks the controller for a report once a second, for its
// history, and for each request that needs one: they share what is made once a second.
//
// # Who sees what
//
// A request with the token of an operator sees everything. One with a tenant's token, or without a token where that is
// allowed (loopback addresses), sees what a tenant sees: names, shares and bytes of all sessions. Lines of code and
// traces are shown to operators, and to those who show a token of the tenant whose they are. If the cluster has a file
// of tenants, timelines show a tenant the names of its own programs alone. /healthz and /readyz need no token, and tell
// nothing else.
package watch

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/openpathways/pathways/core/wire"
)

// Source answers questions about a cluster, as a controller does.
type Source interface {
	// Answer returns what a viewer is told. Others may have the same report.
	Answer(ask *wire.Ask, to wire.Viewer) *wire.Report
	// Timeline returns what some devices did in the last seconds, as far as it is known, and begins to find out more: it
	// knows something some heartbeats later.
	Timeline(look *wire.Look) *wire.Timeline
	// Traces lists the traces that clients have recorded, the oldest first.
	Traces() []*wire.Report_Trace
	// Trace returns one of them, compressed by gzip, nil if it is not kept any more.
	Trace(number uint64) []byte
}

// Config configures a Site.
type Config struct {
	Source Source
	// Operator and Tenant are the tokens that open the site; "" is none.
	Operator, Tenant string
	// TenantOf returns the name of the tenant that a token is of, which opens what Tenant does, and the names of that
	// tenant's programs in timelines; nil knows none.
	TenantOf func(token string) (name string, is bool)
	// Open lets requests without a token see what a tenant sees, if they name this machine as their host. It is meant
	// for loopback addresses.
	Open bool
	Log  *slog.Logger
}

// Site is the pages of a cluster. It is an http.Handler.
type Site struct {
	config  Config
	mux     *http.ServeMux
	history *History
	// What was made of the newest report, for each kind of viewer: a scrape has no lines of code.
	statuses [operators + 1]text
	scrape   text
	done     chan struct{}
	running  sync.WaitGroup
}

// sampleEvery is the time between two points of the history.
const sampleEvery = time.Second

// recentMs is how old a report may be: less than the time between two questions of one viewer, so that it does not get
// the same report twice, and more than the time between questions of two viewers.
const recentMs = 900

// Recent returns the question of those that look again and again: all of them together have the controller make about
// one report a second.
func Recent() *wire.Ask { return &wire.Ask{MaxAgeMs: recentMs} }

// New makes a site, and begins to keep its history. Close ends that.
func New(c Config) *Site {
	s := &Site{config: c, mux: http.NewServeMux(), history: NewHistory(), done: make(chan struct{})}
	s.mux.HandleFunc("GET /healthz", s.healthy)
	s.mux.HandleFunc("GET /readyz", s.ready)
	s.mux.HandleFunc("GET /metrics", s.metrics)
	s.mux.HandleFunc("GET /api/status", s.status)
	s.mux.HandleFunc("GET /api/events", s.events)
	s.mux.HandleFunc("GET /api/history", s.past)
	s.mux.HandleFunc("GET /api/timeline", s.timeline)
	s.mux.HandleFunc("GET /api/traces", s.traces)
	s.mux.HandleFunc("GET /api/trace", s.trace)
	s.mux.Handle("GET /", http.FileServerFS(files()))
	s.running.Go(s.sample)
	return s
}

// Close ends the history.
func (s *Site) Close() {
	close(s.done)
	s.running.Wait()
}

//go:embed page
var page embed.FS

func files() fs.FS {
	f, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the name is no path
	}
	return f
}

func (s *Site) sample() {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		s.history.Add(time.Now(), s.config.Source.Answer(Recent(), wire.Viewer{}))
		select {
		case <-s.done:
			return
		case <-tick.C:
		}
	}
}

// ServeHTTP serves a request.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'self'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
		s.mux.ServeHTTP(w, r)
		return
	}
	token := r.URL.Query().Get("token")
	view, keeps := s.viewOf(r), ""
	if token != "" {
		view, keeps = s.opens(token, same), forPages(token)
		if name, is := s.tenantOf(token); is && view.role == nothing {
			view, keeps = viewer{tenants, name}, s.named(name)
		}
	}
	if view.role == nothing {
		h.Set("WWW-Authenticate", "Bearer")
		http.Error(w, "Open this page with ?token= and a token of the cluster (pathways token tenant, or operator), or "+
			"send it as Authorization: Bearer.", http.StatusUnauthorized)
		return
	}
	if token != "" { // from here on the browser has a cookie, and its address bar does not show the token
		http.SetCookie(w, &http.Cookie{Name: cookie, Value: keeps, Path: "/", HttpOnly: true,
			Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode})
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	s.mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), viewKey{}, view)))
}

// viewer is who a request comes from.
type viewer struct {
	role   role
	tenant string // its name, "" if it has none
}

// role says what a request may see.
type role int

const (
	nothing role = iota
	tenants
	operators
)

type viewKey struct{}

const cookie = "pathways_page"

// forPages returns what a browser keeps in a token's place. A browser shows a cookie to every server of its machine, on
// whatever port and of whatever user; this one opens pages alone.
func forPages(token string) string {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("pathways pages"))
	return hex.EncodeToString(mac.Sum(nil))
}

// named returns what the browser of a tenant with a name keeps: the name, and a proof that its token was shown to
// a holder of the operator's.
func (s *Site) named(name string) string {
	return hex.EncodeToString([]byte(name)) + "." + forPages(s.config.Operator+" "+name)
}

// ofNamed returns the tenant whose browser keeps a text.
func (s *Site) ofNamed(kept string) (name string, is bool) {
	first, _, _ := strings.Cut(kept, ".")
	b, err := hex.DecodeString(first)
	if err != nil || s.config.TenantOf == nil || s.config.Operator == "" {
		return "", false
	}
	return string(b), subtle.ConstantTimeCompare([]byte(kept), []byte(s.named(string(b)))) == 1
}

func same(token string) string { return token }

// viewOf says who a request comes from.
func (s *Site) viewOf(r *http.Request) viewer {
	if token, given := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); given {
		v := s.opens(token, same)
		if name, is := s.tenantOf(token); is && v.role == nothing {
			return viewer{tenants, name}
		}
		return v
	}
	if c, err := r.Cookie(cookie); err == nil {
		if name, is := s.ofNamed(c.Value); is {
			return viewer{tenants, name}
		}
		if v := s.opens(c.Value, forPages); v.role != nothing {
			return v
		} // else it is that of another cluster
	}
	// A page from elsewhere can make a name of its own point to this machine, and so send requests from the user's
	// browser; but it cannot change the name that the browser sends.
	if s.config.Open && isThisMachine(r.Host) {
		return viewer{role: tenants}
	}
	return viewer{}
}

// opens returns what a viewer may see who shows a text that is made of a token.
func (s *Site) opens(shown string, made func(token string) string) viewer {
	v := viewer{}
	for of, token := range map[role]string{tenants: s.config.Tenant, operators: s.config.Operator} {
		if token != "" && subtle.ConstantTimeCompare([]byte(shown), []byte(made(token))) == 1 {
			v.role = of
		}
	}
	return v
}

func (s *Site) tenantOf(token string) (name string, is bool) {
	if s.config.TenantOf == nil {
		return "", false
	}
	return s.config.TenantOf(token)
}

// isThisMachine reports whether a request's host is a name of the machine that no other machine has.
func isThisMachine(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// answer asks the controller for what a viewer may see.
func (s *Site) answer(v viewer, ask *wire.Ask) *wire.Report {
	return s.config.Source.Answer(ask, wire.Viewer{IsTenant: v.role != operators, Tenant: v.tenant})
}

// viewing returns the viewer of a request, once it is known.
func viewing(r *http.Request) viewer {
	v, _ := r.Context().Value(viewKey{}).(viewer)
	return v
}

// glance returns what a controller answers at once.
func (s *Site) glance() *wire.Report {
	return s.config.Source.Answer(&wire.Ask{OnlyEvents: true}, wire.Viewer{})
}

func (s *Site) healthy(w http.ResponseWriter, r *http.Request) {
	s.glance() // it has the lock, or waits for it as everybody does
	_, _ = w.Write([]byte("ok\n"))
}

func (s *Site) ready(w http.ResponseWriter, r *http.Request) {
	if s.glance().Devices == 0 {
		http.Error(w, "no worker has brought a device yet", http.StatusServiceUnavailable)
		return
	}
	_, _ = w.Write([]byte("ok\n"))
}

func (s *Site) status(w http.ResponseWriter, r *http.Request) {
	v := viewing(r)
	report := s.answer(v, Recent())
	if v.tenant != "" { // few look at a tenant's
		writeJSON(w, wire.AppendJSON(nil, report))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	s.statuses[v.role].write(w, report, func(b []byte, r *wire.Report) []byte { return wire.AppendJSON(b, r) })
}

// text is a report in some form, which is made once for all who ask for it: they share reports, see Recent.
type text struct {
	mu     sync.Mutex
	report *wire.Report
	made   *made
}

// made is a text in memory that is used again for the next one, unless somebody still reads it: of a large cluster it
// is a megabyte, once a second.
type made struct {
	text    []byte
	readers int
}

// write writes a report as form appends it, if that was not made before.
func (t *text) write(w io.Writer, r *wire.Report, form func([]byte, *wire.Report) []byte) {
	t.mu.Lock()
	if t.made == nil || t.report != r && t.made.readers > 0 {
		t.made, t.report = new(made), nil
	}
	m := t.made
	if t.report != r {
		t.report, m.text = r, form(m.text[:0], r)
	}
	m.readers++
	t.mu.Unlock()
	_, _ = w.Write(m.text) // a viewer that has left does not read it
	t.mu.Lock()
	m.readers--
	t.mu.Unlock()
}

// events writes the events after the one that the request has heard of.
func (s *Site) events(w http.ResponseWriter, r *http.Request) {
	after, err := strconv.ParseUint(r.URL.Query().Get("after"), 10, 64)
	if err != nil && r.URL.Query().Has("after") {
		http.Error(w, "after is the number of an event", http.StatusBadRequest)
		return
	}
	report := s.answer(viewing(r), &wire.Ask{Events: pageEvents, After: after, OnlyEvents: true})
	b := []byte(`{"events":[`)
	for i, e := range report.Events {
		if i > 0 {
			b = append(b, ',')
		}
		b = wire.AppendJSON(b, e)
	}
	b = strconv.AppendUint(append(b, `],"newest_event":`...), report.NewestEvent, 10)
	writeJSON(w, append(b, '}'))
}

// pageEvents is the number of events on a page.
const pageEvents = 200

func (s *Site) past(w http.ResponseWriter, r *http.Request) { s.write(w, s.history.Past()) }

func (s *Site) write(w http.ResponseWriter, value any) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(value); err != nil {
		s.config.Log.Warn("an answer could not be encoded", "error", err)
		http.Error(w, "the answer could not be encoded", http.StatusInternalServerError)
		return
	}
	writeJSON(w, b.Bytes())
}

func writeJSON(w http.ResponseWriter, text []byte) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // a viewer that has left does not read it
}
