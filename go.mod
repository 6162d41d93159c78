module github.com/openpathways/pathways

go 1.26
