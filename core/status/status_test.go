package status

import (
	"strings"
	"testing"
)

func TestParseReadsWhatUsersSee(t *testing.T) {
	for text, want := range map[string]Error{
		"INTERNAL: a: b":           {Code: Internal, Message: "a: b"},
		"UNAUTHENTICATED: ":        {Code: Unauthenticated},
		"OK: no error":             {Code: Unknown, Message: "OK: no error"},
		"ValueError: not a code":   {Code: Unknown, Message: "ValueError: not a code"},
		"INTERNAL without a colon": {Code: Unknown, Message: "INTERNAL without a colon"},
		"":                         {Code: Unknown},
	} {
		if err := Parse(text); CodeOf(err) != want.Code || err.Error() != want.Message {
			t.Errorf("%q is %v: %q, want %v: %q", text, CodeOf(err), err, want.Code, want.Message)
		}
	}
}

func TestCountUsesThePlural(t *testing.T) {
	for want, got := range map[string]string{
		"0 workers": Count(0, "worker"), "1 worker": Count(uint64(1), "worker"), "2 arrays": Count(int64(2), "array"),
		"1 process": Count(1, "process"), "3 processes": Count(uint32(3), "process"), "4 patches": Count(4, "patch"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// A name that is longer than anybody reads is cut where an error quotes it.
func TestQuoteIsShort(t *testing.T) {
	for text, want := range map[string]string{
		"": `""`, "a\n": `"a\n"`, strings.Repeat("a", 256): `"` + strings.Repeat("a", 256) + `"`,
		strings.Repeat("a", 63<<20): `"` + strings.Repeat("a", 256) + `"… of 66060288 bytes`,
	} {
		if got := Quote(text); got != want {
			t.Errorf("%d bytes are quoted as %.300s, want %s", len(text), got, want)
		}
	}
}
