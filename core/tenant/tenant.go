// Package tenant is who shares a cluster, and on which terms: it reads and checks the file of tenants, and answers
// whose a credential is.
//
// It is pure: it opens no file, and a Table never changes. The controller gets a Table by an event; what checks
// credentials asks the same Table. core/cluster reads the file and passes the Table to both.
package tenant

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/openpathways/pathways/core/shape"
	"github.com/openpathways/pathways/core/status"
)

// Default is the name of the tenant that has all sessions whose credential names no tenant.
const Default = "default"

// Class says whose work comes first. Tenants of a lower class get what those of higher ones leave, and a small part of
// each device in any case: core/schedule says how much.
type Class int

// The classes. The zero Class is Normal.
const (
	Low    Class = -1
	Normal Class = 0
	High   Class = 1
)

var classes = map[string]Class{"low": Low, "normal": Normal, "high": High}

func (c Class) String() string {
	for name, class := range classes {
		if class == c {
			return name
		}
	}
	return fmt.Sprint(int(c))
}

// Tenant is a name under which sessions share devices with others. Zero in a quota is no bound.
type Tenant struct {
	Name   string
	Weight float64 // above 0
	Class  Class
	// Parts of the time of each device, from 0 to 1.
	Guaranteed, AtMost float64
	// Quotas.
	DeviceMemory int64 // bytes of arrays, on each device
	HostMemory   int64 // bytes of operations under way, on each worker
	Sessions     int
	SliceDevices int // devices that its sessions may have in slices at a time
}

// Table is a file of tenants, read and checked.
type Table struct {
	all    []Tenant // by name
	tokens map[[sha256.Size]byte]string
}

// Bounds of a file's contents.
const (
	maxTenants  = 1024 // the file is read while nothing else waits, and shown as a whole
	maxName     = 64
	maxWeight   = 1e6 // so that a weight times device time stays a number
	minWeight   = 1e-6
	minToken    = 16 // characters: a shorter one can be guessed
	allOfDevice = 1.0
	// What may be guaranteed to all together: each class below the highest has schedule.Floor of a device in any case.
	maxGuaranteed = 0.9
	rounding      = 1e-9 // of sums of parts
	percent       = 100
)

// All returns the tenants by name. The caller does not change them.
func (t *Table) All() []Tenant { return t.all }

// Named returns the tenant of a name.
func (t *Table) Named(name string) (Tenant, bool) {
	i, found := slices.BinarySearchFunc(t.all, name,
		func(a Tenant, name string) int { return strings.Compare(a.Name, name) })
	if !found {
		return Tenant{}, false
	}
	return t.all[i], true
}

// OfToken returns the name of the tenant that a token belongs to. The time that it takes tells nothing of other tokens:
// it compares sums of them.
func (t *Table) OfToken(token []byte) (name string, ok bool) {
	name, ok = t.tokens[sha256.Sum256(token)]
	return name, ok
}

// entry is a tenant's table in the file, by field.
type entry map[string]any

// fields are the keys of a tenant's table.
var fields = []string{"token-file", "token-sha256", "weight", "class", "guaranteed", "at-most", "device-memory",
	"host-memory", "sessions", "slice-devices"}

// reader reads one file.
type reader struct {
	path, text string
	token      func(path string) (string, error)
	table      *Table
	guaranteed float64 // by all so far
}

// Parse reads the text of a file of tenants. The path is for messages, and files of tokens are named from its
// directory. Token returns the token in a file.
//
// Errors: INVALID_ARGUMENT, with the file, the line, the field and what was expected; those of token.
func Parse(path, text string, token func(path string) (string, error)) (*Table, error) {
	var file struct {
		Tenants map[string]entry `toml:"tenants"`
	}
	r := &reader{path: path, text: text, token: token, table: &Table{tokens: map[[sha256.Size]byte]string{}}}
	meta, err := toml.Decode(text, &file)
	if err != nil {
		return nil, r.malformed(err)
	}
	if others := meta.Undecoded(); len(others) > 0 {
		return nil, status.New(status.InvalidArgument, "%s, line %d: %q does not belong into a file of tenants; expected "+
			"tables such as [tenants.research]", path, lineOf(text, others[0]...), others[0].String())
	}
	if len(file.Tenants) == 0 {
		return nil, status.New(status.InvalidArgument, "%s has no tenants; expected tables such as [tenants.research]", path)
	}
	if len(file.Tenants) > maxTenants {
		return nil, status.New(status.InvalidArgument, "%s has %d tenants; expected at most %d", path, len(file.Tenants),
			maxTenants)
	}
	var order []string // of the file, so that the first mistake is reported
	for _, key := range meta.Keys() {
		if len(key) >= 2 && !slices.Contains(order, key[1]) {
			order = append(order, key[1])
		}
	}
	for _, name := range order {
		if err := r.add(name, file.Tenants[name]); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(r.table.all, func(a, b Tenant) int { return strings.Compare(a.Name, b.Name) })
	return r.table, nil
}

var nameForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// names describes tenants' names, for messages.
const names = "1 to 64 letters, digits, dots, hyphens and underscores, a letter or digit first"

func isName(name string) bool { return nameForm.MatchString(name) && len(name) <= maxName }

// CheckName returns why a text is not a tenant's name, nil if it may be one.
//
// Errors: INVALID_ARGUMENT.
func CheckName(name string) error {
	if !isName(name) {
		return status.New(status.InvalidArgument, "%q is not a name for a tenant; expected %s", name, names)
	}
	return nil
}

// add checks what the file says of a tenant, and adds it to the table.
func (r *reader) add(name string, e entry) (err error) {
	if !isName(name) {
		return r.wrong(name, "", "is no name; expected "+names)
	}
	for _, field := range slices.Sorted(maps.Keys(e)) {
		if !slices.Contains(fields, field) {
			return r.wrong(name, field, "is no field of a tenant; expected one of "+strings.Join(fields, ", "))
		}
	}
	t := Tenant{Name: name, Weight: 1, AtMost: allOfDevice}
	for _, read := range []func(*Tenant, entry) error{r.addWeight, r.addShares, r.addQuotas} {
		if err := read(&t, e); err != nil {
			return err
		}
	}
	if err := r.addToken(name, e); err != nil {
		return err
	}
	r.table.all = append(r.table.all, t)
	return nil
}

// addWeight reads a tenant's weight and class.
func (r *reader) addWeight(t *Tenant, e entry) error {
	if value, says := e["weight"]; says {
		switch n := value.(type) {
		case float64:
			t.Weight = n
		case int64:
			t.Weight = float64(n)
		default:
			t.Weight = 0
		}
		if !(t.Weight >= minWeight && t.Weight <= maxWeight) {
			return r.wrong(t.Name, "weight", fmt.Sprintf("is %v; expected a number above 0, at most %d", said(value),
				int(maxWeight)))
		}
	}
	if value, says := e["class"]; says {
		text, _ := value.(string)
		class, known := classes[text]
		if !known {
			return r.wrong(t.Name, "class", fmt.Sprintf("is %v; expected \"high\", \"normal\" or \"low\"", said(value)))
		}
		t.Class = class
	}
	return nil
}

// addQuotas reads a tenant's quotas.
func (r *reader) addQuotas(t *Tenant, e entry) error {
	for _, q := range []struct {
		field string
		into  *int64
	}{{"device-memory", &t.DeviceMemory}, {"host-memory", &t.HostMemory}} {
		value, says := e[q.field]
		if !says {
			continue
		}
		text, _ := value.(string)
		bytes, ok := shape.ParseBytes(text)
		if !ok || bytes == 0 {
			return r.wrong(t.Name, q.field, fmt.Sprintf("is %v; expected bytes above 0, such as \"4GiB\"", said(value)))
		}
		*q.into = bytes
	}
	for _, q := range []struct {
		field string
		into  *int
	}{{"sessions", &t.Sessions}, {"slice-devices", &t.SliceDevices}} {
		value, says := e[q.field]
		if !says {
			continue
		}
		n, ok := value.(int64)
		if !ok || n < 1 || n > math.MaxInt32 {
			return r.wrong(t.Name, q.field, fmt.Sprintf("is %v; expected a whole number from 1 on", said(value)))
		}
		*q.into = int(n)
	}
	return nil
}

// said writes a value as a file says it.
func said(value any) string {
	if text, is := value.(string); is {
		return strconv.Quote(text)
	}
	return fmt.Sprint(value)
}

// addShares checks the parts of the devices' time.
func (r *reader) addShares(t *Tenant, e entry) (err error) {
	if t.Guaranteed, err = r.part(t.Name, "guaranteed", e, 0); err != nil {
		return err
	}
	if t.AtMost, err = r.part(t.Name, "at-most", e, allOfDevice); err != nil {
		return err
	}
	if t.Guaranteed > t.AtMost {
		return r.wrong(t.Name, "at-most", fmt.Sprintf("is %v, less than what is guaranteed, %v; expected at least that",
			said(e["at-most"]), said(e["guaranteed"])))
	}
	if r.guaranteed += t.Guaranteed; r.guaranteed > maxGuaranteed+rounding {
		return r.wrong(t.Name, "guaranteed", fmt.Sprintf("is %v, with which all tenants together are guaranteed %.4g%%; "+
			"expected at most %.4g%%, so that lower classes have some, too", said(e["guaranteed"]), percent*r.guaranteed,
			percent*maxGuaranteed))
	}
	return nil
}

// part reads a percentage.
func (r *reader) part(name, field string, e entry, otherwise float64) (float64, error) {
	value, says := e[field]
	if !says {
		return otherwise, nil
	}
	text, _ := value.(string)
	number, is := strings.CutSuffix(strings.TrimSpace(text), "%")
	part, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil || !is || !(part > 0 && part <= percent) {
		return 0, r.wrong(name, field, fmt.Sprintf("is %v; expected a part of the devices' time, above 0%% and at most "+
			"100%%, such as \"25%%\"", said(value)))
	}
	return part / percent, nil
}

// addToken checks the credential of a tenant.
func (r *reader) addToken(name string, e entry) error {
	file, hasFile := e["token-file"]
	digits, hasSum := e["token-sha256"]
	var sum [sha256.Size]byte
	field := "token-file"
	switch {
	case hasFile && hasSum:
		return r.wrong(name, "token-sha256", "stands beside token-file; expected one of them")
	case hasFile:
		path, _ := file.(string)
		if path == "" {
			return r.wrong(name, field, fmt.Sprintf("is %v; expected the path of a file, in quotes", said(file)))
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(r.path), path)
		}
		token, err := r.token(path)
		if err != nil {
			return status.Wrap(err, "%s", r.at(name, field))
		}
		if len(token) < minToken {
			return r.wrong(name, field, fmt.Sprintf("names a token of %d characters, which can be guessed; expected at "+
				"least %d, such as `pathways token new` prints", len(token), minToken))
		}
		sum = sha256.Sum256([]byte(token))
	case hasSum:
		field = "token-sha256"
		text, _ := digits.(string)
		decoded, err := hex.DecodeString(text)
		if err != nil || len(decoded) != len(sum) {
			return r.wrong(name, field, "is no SHA-256 sum; expected 64 hexadecimal digits in quotes")
		}
		copy(sum[:], decoded)
	default:
		return nil // by certificates alone
	}
	if name == Default {
		return r.wrong(name, field, "has no meaning: "+Default+" has the sessions whose credential names no tenant; give "+
			"the token to a tenant of another name")
	}
	if other, taken := r.table.tokens[sum]; taken {
		return r.wrong(name, field, fmt.Sprintf("is the token of tenant %s, too; expected one for each", other))
	}
	r.table.tokens[sum] = name
	return nil
}

// wrong is an error about a field of a tenant, or about its name.
func (r *reader) wrong(name, field, what string) error {
	return status.New(status.InvalidArgument, "%s %s", r.at(name, field), what)
}

func (r *reader) at(name, field string) string {
	line := lineOf(r.text, name, field)
	if field != "" {
		field = "." + field
	}
	return fmt.Sprintf("%s, line %d: tenants.%s%s", r.path, line, name, field)
}

// malformed is an error of the TOML itself.
func (r *reader) malformed(err error) error {
	const expected = "expected tables such as [tenants.research], and lines in them such as weight = 3"
	var wrong toml.ParseError
	if !errors.As(err, &wrong) {
		return status.New(status.InvalidArgument, "%s: %w; %s", r.path, err, expected)
	}
	return status.New(status.InvalidArgument, "%s, line %d: %s; %s", r.path, wrong.Position.Line, wrong.Message, expected)
}

// lineOf returns the number, from 1, of the line where a text sets a key within a table: of each key in turn, the first
// line that names it, from that of the key before on. TOML's reader does not tell.
func lineOf(text string, keys ...string) int {
	lines, at := strings.Split(text, "\n"), 0
	for _, key := range keys {
		if key == "" {
			continue
		}
		named := regexp.MustCompile(`(^|[\s.{,\["'])` + regexp.QuoteMeta(key) + `["']?\s*[\].=]`)
		for i := at; i < len(lines); i++ {
			if line, _, _ := strings.Cut(lines[i], "#"); named.MatchString(line) {
				at = i
				break
			}
		}
	}
	return at + 1
}
