-- Put a proxy's account of a replica in the place of its old one, and tell it what the others have: SharedLedger.rewrite.
--
-- KEYS   as account.lua
-- ARGV   1 now, 2 lease, 3 channel, 4 replica, 5 proxy, 6 epoch, 7 upto, 8 row ("" : it has nothing there), 9 number of the record that the
--        proxy has, 10 proxies that it knows
-- Returns  answer; now (s), anchor of the others (steps) as packed doubles; the others' row without its anchor, empty unless granted;
--          record (JSON) and its number, empty where the proxy has it; the proxy that was offered room, or empty.

local proxy, epoch, upto, packed = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local _, expected, registered = begin(proxy)
local a = load_account()
if not a then return {'unknown', struct.pack('<dd', NOW, 0), '', '', '', ''} end
local record, record_number = '', ''
if a.number ~= ARGV[9] then record, record_number = redis.call('HGET', STATE, 'record'), a.number end

local function refuse(answer) return {answer, struct.pack('<dd', NOW, 0), '', record, record_number, ''} end

if packed ~= '' and not shaped(a, packed) then return refuse('unknown') end
if rebuild_if_due(a) then registered = redis.call('HGET', POOL, 'p|' .. proxy) end
if registered ~= epoch then return refuse('fenced') end
local entry = entry_of(proxy)
if entry and upto < entry.upto then return refuse('stale') end

-- It had nothing and has nothing, and nobody waits for room: its stamp is renewed, and the total is what the others have.
local nothing = packed == '' and entry and entry.upto >= 0 and entry.numbers == ''
if nothing and not rawget(a, 'total') and not redis.call('HGET', ROWS, 'r|' .. proxy) and #redis.call('HGETALL', HEADS) == 0 then
  save_entry(proxy, epoch, upto, '')
  if tonumber(ARGV[10]) > expected then redis.call('HSET', POOL, 'expected', ARGV[10]) end
  return {'granted', struct.pack('<dd', NOW, a.anchor), a.packed_total, record, record_number, ''}
end

-- What it had goes out, its new row and the grants that it does not know of yet come in.
local numbers = entry and numbers_of(entry) or {}
local others = total_less(a, own_of(a, proxy, entry))
local own = sum_of(a, packed, proxy, numbers, upto)
local told = pack_row(a, others)
a.total = others
if own then
  for i = 1, a.length do own[i] = others[i] + own[i] end
  a.total = own
end
local kept, settled = '', {}
for i = 1, #numbers do
  if numbers[i] > upto then
    kept = kept .. struct.pack('<d', numbers[i])
  else
    settled[#settled + 1] = grant_field(proxy, numbers[i])
  end
end
settle(a)
if not entry or entry.upto < 0 then a.rewritten = a.rewritten + 1 end

save_entry(proxy, epoch, upto, kept)
if packed ~= '' then redis.call('HSET', ROWS, 'r|' .. proxy, packed) else redis.call('HDEL', ROWS, 'r|' .. proxy) end
for i = 1, #settled do redis.call('HDEL', ROWS, settled[i]) end
save_total(a)
if tonumber(ARGV[10]) > expected then redis.call('HSET', POOL, 'expected', ARGV[10]) end

return {'granted', struct.pack('<dd', NOW, a.anchor), told, record, record_number, offer_rest(a, (live_heads())) or ''}
