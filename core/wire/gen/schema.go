package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const schemaFile = "../../docs/guides/status.schema.json"

// writeSchema writes the JSON schema of the message Report, with its comments, for the docs.
func writeSchema(file protoreflect.FileDescriptor) error {
	schema := schemaOf(file.Messages().ByName("Report"), file.SourceLocations())
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	schema["$comment"] = "Code generated from core/wire/" + source + ". DO NOT EDIT."
	schema["title"] = "what `pathways status --json` prints"
	text, err := json.MarshalIndent(schema, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(schemaFile, append(text, '\n'), 0o644)
}

func schemaOf(m protoreflect.MessageDescriptor, comments protoreflect.SourceLocations) map[string]any {
	properties, required := map[string]any{}, []string{}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		var of map[string]any
		switch f.Kind() {
		case protoreflect.MessageKind:
			of = schemaOf(f.Message(), comments)
		case protoreflect.StringKind:
			of = map[string]any{"type": "string"}
		case protoreflect.BoolKind:
			of = map[string]any{"type": "boolean"}
		default:
			of = map[string]any{"type": "integer"}
		}
		if f.IsList() {
			of = map[string]any{"type": "array", "items": of}
		}
		at := comments.ByDescriptor(f)
		if text := strings.Join(strings.Fields(at.LeadingComments+" "+at.TrailingComments), " "); text != "" {
			of["description"] = text
		}
		properties[string(f.Name())] = of
		required = append(required, string(f.Name()))
	}
	slices.Sort(required)
	return map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false}
}
