package sqltest

import (
	"testing"

	"natsfabric/fence/sqlguard"
)

// BenchmarkUpdate is one write to a row, with and without a guard; guardbench runs them interleaved.
func BenchmarkUpdate(b *testing.B) {
	for _, d := range databases {
		db := d.open(b)
		rows := orders(b, d, db)
		ctx := with(b, token(33))
		plain := "UPDATE orders SET status = " + d.dialect.Placeholder(1) + " WHERE id = " + d.dialect.Placeholder(2)
		b.Run(d.name+"/unguarded", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := db.ExecContext(ctx, plain, "PAID", 7); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(d.name+"/guarded", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := rows.Update(ctx, db, []any{7}, sqlguard.Column{Name: "status", Value: "PAID"}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
