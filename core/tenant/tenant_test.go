package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"github.com/openpathways/pathways/core/status"
	"github.com/openpathways/pathways/core/status/statustest"
)

const secret = "tenant-0123456789abcdef"

// files are the tokens of the tests.
func files(path string) (string, error) {
	switch path {
	case "/etc/pathways/research.token", "/secrets/research":
		return secret, nil
	case "/etc/pathways/short":
		return "1234", nil
	}
	return "", status.New(status.NotFound, "the token file %s cannot be read", path)
}

func parse(text string) (*Table, error) { return Parse("/etc/pathways/tenants.toml", text, files) }

func TestFileSaysWhoSharesAndOnWhichTerms(t *testing.T) {
	other := "tenant-fedcba9876543210"
	sum := sha256.Sum256([]byte(other))
	table := statustest.Value(parse(`
[tenants.research]
token-file = "research.token"
weight = 3
class = "high"
guaranteed = "25%"
at-most = "80 %"
device-memory = "4GiB"
sessions = 4
slice-devices = 2

[tenants.default]

[tenants."batch"]
token-sha256 = "` + hex.EncodeToString(sum[:]) + `"
class = "low"
`)).OK(t)
	want := []Tenant{
		{Name: "batch", Weight: 1, Class: Low, AtMost: 1},
		{Name: "default", Weight: 1, AtMost: 1},
		{Name: "research", Weight: 3, Class: High, Guaranteed: 0.25, AtMost: 0.8, DeviceMemory: 4 << 30,
			Sessions: 4, SliceDevices: 2},
	}
	if !slices.Equal(table.All(), want) {
		t.Errorf("the file has %+v\nexpected %+v", table.All(), want)
	}
	if got, ok := table.Named("research"); !ok || got.Weight != 3 {
		t.Errorf("research is %v, %t", got, ok)
	}
	if _, ok := table.Named("nobody"); ok {
		t.Error("a tenant is there that the file does not name")
	}
	for token, want := range map[string]string{secret: "research", other: "batch", "": "", secret + "0": ""} {
		if got, ok := table.OfToken([]byte(token)); got != want || ok != (want != "") {
			t.Errorf("token %q is of %q, %t; expected %q", token, got, ok, want)
		}
	}
}

func TestMistakesAreNamedWithTheirLine(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "tenants.toml has no tenants; expected tables such as [tenants.research]"},
		{"[tenants.a]\nweight = 1\n[tenants.b]\n# weight = 2\nweight = -1",
			"line 5: tenants.b.weight is -1; expected a number"},
		{"[tenants.b]\nweight = \"3\"", "line 2: tenants.b.weight is \"3\"; expected a number"},
		{"[tenants.b]\nweight = nan", "line 2: tenants.b.weight is NaN"},
		{"[tenants.b]\nwieght = 3", "line 2: tenants.b.wieght is no field of a tenant; expected one of token-file"},
		{"[tennants.b]\nweight = 3", "tenants.toml, line 1: \"tennants"},
		{"[tenants.b\nweight = 3", "line 2: "},
		{"[tenants.\"a b\"]\n", "line 1: tenants.a b is no name; expected 1 to 64 letters"},
		{"[tenants.b]\nclass = \"urgent\"", "line 2: tenants.b.class is \"urgent\"; expected \"high\""},
		{"[tenants.b]\nguaranteed = \"0.3\"", "line 2: tenants.b.guaranteed is \"0.3\"; expected a part"},
		{"[tenants.b]\nat-most = \"130%\"", "line 2: tenants.b.at-most is \"130%\"; expected a part"},
		{"[tenants.b]\nat-most = \"30% \"\nguaranteed = \"40%\"", "line 2: tenants.b.at-most is \"30% \", less than"},
		{"[tenants.a]\nguaranteed = \"50%\"\n[tenants.b]\nguaranteed = \"41%\"",
			"line 4: tenants.b.guaranteed is \"41%\", with which all tenants together are guaranteed 91%; expected at most 90%"},
		{"[tenants.b]\ndevice-memory = \"many\"", "line 2: tenants.b.device-memory is \"many\"; expected bytes"},
		{"[tenants.b]\ndevice-memory = 5", "line 2: tenants.b.device-memory is 5; expected bytes above 0"},
		{"[tenants.b]\nsessions = 0", "line 2: tenants.b.sessions is 0; expected a whole number from 1 on"},
		{"[tenants.b]\nslice-devices = -2", "line 2: tenants.b.slice-devices is -2"},
		{"[tenants.b]\ntoken-file = \"gone\"", "line 2: tenants.b.token-file: the token file /etc/pathways/gone"},
		{"[tenants.b]\ntoken-file = \"short\"", "line 2: tenants.b.token-file names a token of 4 characters"},
		{"[tenants.b]\ntoken-sha256 = \"12\"", "line 2: tenants.b.token-sha256 is no SHA-256 sum"},
		{"[tenants.b]\ntoken-sha256 = \"" + strings.Repeat("x", 64) + "\"", "line 2: tenants.b.token-sha256 is no SHA-256"},
		{"[tenants.default]\ntoken-file = \"research.token\"", "line 2: tenants.default.token-file has no meaning"},
		{"[tenants.b]\ntoken-file = \"research.token\"\ntoken-sha256 = \"\"", "line 3: tenants.b.token-sha256 stands beside"},
		{"[tenants.a]\ntoken-file = \"research.token\"\n[tenants.b]\ntoken-file = \"/secrets/research\"",
			"line 4: tenants.b.token-file is the token of tenant a, too"},
	} {
		_, err := parse(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v\nexpected %s", c.text, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q: the error shows a token: %v", c.text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("[tenants.a]\nweight = 2\nat-most = \"50%\"\n[tenants.b]\ntoken-file = \"research.token\"\n")
	f.Add("tenants = {a = {weight = 1e9}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := parse(text)
		if err != nil {
			return
		}
		for _, one := range table.All() {
			if !(one.Weight > 0) || one.Guaranteed > one.AtMost || one.AtMost > 1 {
				t.Errorf("%+v was accepted", one)
			}
		}
	})
}
