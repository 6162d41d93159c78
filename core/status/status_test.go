package status

import "testing"

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
