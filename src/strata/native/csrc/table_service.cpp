// Table services, the doorbell's other kind: rows of tables that lie in files. Made here; all else is the doorbell's.
#include "doorbell_service.h"
#include "errors.h"
#include "pool.h"

namespace strata {
namespace {

int32_t answer_rows(StrataDoorbell &service, const StrataMailbox &box) {
    service.request.layer = box.header[0];  // a failure names the table
    const int32_t code = read_table_rows(service.pool, service.tables, box, service.stopping);
    service.counted.experts += service.tables.wanted.size();
    return code;
}

int32_t check_table_mailbox(const StrataMailbox &box, const FileTable &table) {
    if (!box.door || !box.done || !box.status || !box.header || !box.entries || !box.out)
        return fail(STRATA_INVALID, "a pointer of a table's mailbox is null");
    if (box.max_rows < 1 || box.max_entries < 1 || box.ranks < 1 || box.max_rows > INT32_MAX / box.ranks ||
        box.hidden != table.form.columns)
        return fail(STRATA_INVALID, "a mailbox of %d rows, %d entries, %d ranks of %d columns for a table of %d",
                    box.max_rows, box.max_entries, box.ranks, box.hidden, table.form.columns);
    return STRATA_OK;
}

}  // namespace
}  // namespace strata

int32_t strata_tables_create(StrataPool *readers, const StrataFileTable *tables, const StrataMailbox *mailboxes,
                             int32_t count, int32_t limit_ms, StrataDoorbell **service) {
    using namespace strata;
    if (!readers || !tables || !mailboxes || count < 1 || limit_ms < 1 || !service)
        return fail(STRATA_INVALID, "a service of %d tables that answers within %d ms", count, limit_ms);
    *service = nullptr;
    return guarded([&]() -> int32_t {
        auto made = std::make_unique<StrataDoorbell>();
        made->pool = readers, made->holds_pool = false;  // a window asks once
        made->answer = answer_rows, made->asked_for = "table rows";
        made->limit = std::chrono::milliseconds(limit_ms);
        made->boxes = std::vector<Box>(static_cast<size_t>(count));
        if (const int32_t code = open_tables(tables, count, thread_count(readers), made->tables)) return code;
        for (int32_t i = 0; i < count; ++i) {
            if (const int32_t code = check_table_mailbox(mailboxes[i], made->tables.tables[static_cast<size_t>(i)]))
                return code;
            made->boxes[static_cast<size_t>(i)].shared = mailboxes[i];
        }
        return start_service(std::move(made), service);
    });
}

int32_t strata_tables_waited(const StrataDoorbell *service, uint64_t *rows) {
    using namespace strata;
    if (!service || !rows) return fail(STRATA_INVALID, "no table service, or no place for what it counts");
    *rows = service->tables.waited.load();
    return STRATA_OK;
}
