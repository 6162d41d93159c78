package watch

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/openpathways/pathways/core/wire"
)

// may reports whether a viewer is shown a trace: it has lines of code, and what a session did in which order.
func (v viewer) may(t *wire.Report_Trace) bool {
	return v.role == operators || v.role == tenants && v.tenant != "" && v.tenant == t.Tenant
}

// traces writes which traces clients have recorded, as far as the viewer may see them.
func (s *Site) traces(w http.ResponseWriter, r *http.Request) {
	all := []json.RawMessage{}
	for _, t := range s.config.Source.Traces() {
		if viewing(r).may(t) {
			all = append(all, wire.AppendJSON(nil, t))
		}
	}
	s.write(w, all)
}

// trace writes a trace, as a file for Perfetto.
func (s *Site) trace(w http.ResponseWriter, r *http.Request) {
	number, err := strconv.ParseUint(r.URL.Query().Get("number"), 10, 64)
	if err != nil {
		http.Error(w, "number is that of a trace", http.StatusBadRequest)
		return
	}
	var data []byte
	for _, t := range s.config.Source.Traces() {
		if t.Number == number && viewing(r).may(t) {
			data = s.config.Source.Trace(number)
			w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": t.Name}))
		}
	}
	if data == nil {
		http.Error(w, "There is no such trace, or it is not yours: those of others are shown with a token of an operator.",
			http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(data) // a viewer that has left does not read it
		return
	}
	if plain, err := gzip.NewReader(bytes.NewReader(data)); err == nil {
		_, _ = io.Copy(w, plain) // as above; what a client sent wrongly ends here
	}
}
