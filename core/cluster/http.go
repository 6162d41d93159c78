package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/netutil"

	"github.com/openpathways/pathways/core/controller/server"
	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/system"
	"github.com/openpathways/pathways/core/watch"
	"github.com/openpathways/pathways/transport"
)

// site is a controller's web page, being served.
type site struct {
	server  *http.Server
	watch   *watch.Site
	running sync.WaitGroup
}

// Bounds for the page's clients, which anyone who reaches its address can be.
const (
	requestTime = 10 * time.Second // to send the head of a request
	answerTime  = 30 * time.Second // to read an answer, which is a trace of many MiB at most
	idleTime    = time.Minute      // between two requests of a connection
	headSize    = 64 << 10         // bytes of the head of a request
)

// closeSite bounds the time that a controller's end waits for requests under way.
const closeSite = time.Second

// pageListener listens at the address of a web page.
type pageListener struct {
	net.Listener
	address string
	local   bool // only this machine reaches it
}

// listenHTTP listens at the address of a controller's web page.
//
// Errors: INVALID_ARGUMENT for an address that is none, or that other machines reach without TLS; those of listening.
func listenHTTP(c ControllerConfig, secure *tls.Config) (*pageListener, error) {
	host, _, err := net.SplitHostPort(c.HTTP)
	if err != nil {
		return nil, status.New(status.InvalidArgument, "--http is %q; expected host:port, such as 127.0.0.1:8080", c.HTTP)
	}
	local := host == "localhost" || net.ParseIP(host).IsLoopback()
	if !local && (secure == nil || len(secure.Certificates) == 0) {
		return nil, status.New(status.InvalidArgument, "--http %s is open to other machines, and tokens would cross the "+
			"network unprotected; name a certificate and its key (--tls-cert, --tls-key, --tls-ca), or an address such as "+
			"127.0.0.1:8080", c.HTTP)
	}
	if !local && c.Secret.Token == "" {
		return nil, status.New(status.InvalidArgument,
			"--http %s is open to other machines, and there is no token to ask for; name one by --token-file", c.HTTP)
	}
	l, err := net.Listen("tcp", c.HTTP)
	if err != nil {
		return nil, system.Error(err, "the web page cannot be served at %s", c.HTTP)
	}
	l = netutil.LimitListener(l, maxPages)
	p := &pageListener{l, "http://" + l.Addr().String() + "/", local}
	if !local {
		// Browsers have no certificate of the cluster's; they show a token.
		p.Listener = tls.NewListener(l, &tls.Config{MinVersion: tls.VersionTLS13, Certificates: secure.Certificates,
			NextProtos: []string{"http/1.1"}})
		p.address = "https://" + l.Addr().String() + "/"
	}
	return p, nil
}

// serveHTTP serves a controller's web page. tenantOf, unless it is nil, returns whose token is shown.
func serveHTTP(c ControllerConfig, l *pageListener, source *server.Server,
	tenantOf func(token []byte) (string, bool)) *site {
	own := watch.Config{Source: source, Open: l.local, Log: c.Log, Operator: c.Secret.Token}
	if tenantOf != nil {
		own.TenantOf = func(token string) (string, bool) { return tenantOf([]byte(token)) }
	}
	if own.Operator != "" {
		own.Tenant = transport.Tenant.Token(own.Operator)
	}
	s := &site{watch: watch.New(own)}
	s.server = &http.Server{Handler: s.watch, ReadHeaderTimeout: requestTime, IdleTimeout: idleTime,
		WriteTimeout: answerTime, MaxHeaderBytes: headSize,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelWarn)}
	s.running.Go(func() {
		if err := s.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			c.Log.Warn("the web page is no longer served", "error", err)
		}
	})
	c.Log.Info("the controller shows the cluster", "page", l.address)
	return s
}

// maxPages bounds the connections of a web page; others wait until one of them ends.
const maxPages = 256

func (s *site) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeSite)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close() // requests that have not ended
	}
	s.running.Wait()
	s.watch.Close()
}
