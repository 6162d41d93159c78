package watch

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/core/wire"
)

// Bars have the controller's time, and the names of programs that their reader may see.
func TestTimelineShowsTenantsTheirOwnPrograms(t *testing.T) {
	lane := &wire.Doing_Lane{Local: 1, Sessions: []uint32{3, 4, 9}, Programs: []uint32{0, 1, 2}, Runs: []uint32{1, 5, 1},
		GapNs: []uint64{2e9, 5e6, 0}, Ns: []uint64{1e9, 1e6, 2e6}, Dropped: 7}
	of := func(shared bool) *wire.Timeline {
		return &wire.Timeline{NowNs: 15e9, Shared: shared,
			Owners: []*wire.Timeline_Owner{{Session: 3, Tenant: "ada"}, {Session: 4, Tenant: "bob"}},
			Rows: []*wire.Timeline_Row{{Island: `"one"`, First: 1, Count: 2, Doing: []*wire.Doing{{AheadNs: 10e9,
				Programs: []string{"f", "g", "h"}, Lanes: []*wire.Doing_Lane{{Local: 0}, lane}}}}}}
	}
	for _, c := range []struct {
		name   string
		shared bool
		who    viewer
		want   string
		bars   [3]int64
	}{
		{"a tenant", true, viewer{tenants, "ada"}, "f", [3]int64{0, -1, -1}},
		{"a tenant without a name", true, viewer{role: tenants}, "", [3]int64{-1, -1, -1}},
		{"an operator", true, viewer{role: operators}, "f g h", [3]int64{0, 1, 2}},
		{"anybody, without a file of tenants", false, viewer{role: tenants}, "f g h", [3]int64{0, 1, 2}},
	} {
		got := draw(of(c.shared), c.who)
		want := [][5]int64{{3, c.bars[0], 1, 120e6, 130e6}, {4, c.bars[1], 5, 130.05e6, 130.06e6},
			{9, c.bars[2], 1, 130.06e6, 130.08e6}}
		if strings.Join(got.Programs, " ") != c.want || got.Now != 150e6 || len(got.Lanes) != 2 ||
			got.Lanes[0].Dropped != 7 || !reflect.DeepEqual(got.Lanes[0].Bars, want) {
			t.Errorf("%s sees %+v, want %v and %v", c.name, got, c.want, want)
		}
		var back Timeline
		statustest.Check(t, json.Unmarshal(got.appendJSON(nil), &back))
		if !reflect.DeepEqual(&back, got) {
			t.Errorf("as JSON, %+v is %+v", got, &back)
		}
	}
}

// A browser stays that of its tenant, and cannot become another's.
func TestBrowserKeepsWhichTenantItIs(t *testing.T) {
	site := New(Config{Source: fixed{1}, Operator: "own", Tenant: "team",
		TenantOf: func(token string) (string, bool) { return "ada", token == "ada's" }})
	defer site.Close()
	w := httptest.NewRecorder()
	site.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?token=ada's", nil))
	set := w.Result().Cookies()
	if w.Code != http.StatusSeeOther || len(set) != 1 {
		t.Fatalf("it answers %d %v", w.Code, w.Header())
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.AddCookie(set[0])
	statustest.Equal(t, site.viewOf(r), (viewer{tenants, "ada"}), "the cookie is of")
	_, proof, _ := strings.Cut(set[0].Value, ".")
	r = httptest.NewRequest(http.MethodGet, "/", nil)
	r.AddCookie(&http.Cookie{Name: cookie, Value: "626f62." + proof}) // bob
	statustest.Equal(t, site.viewOf(r), (viewer{}), "a cookie with another name is of")
}
