"""The grids of the i-quants: which level each weight of a group takes, by the group's index. Facts of the formats.

The numbers are those that ggml publishes (ggml-common.h, and the `gguf` package of its authors), kept as bits: 2 or 3
for the number of a level, lowest first, in base 85. Knows no block and no scale.
"""

import base64

import numpy as np
from numpy.typing import NDArray


def _unpack(width: int, bits: int, text: str) -> NDArray[np.uint8]:
    """Level numbers [entries, width]."""
    flat = np.unpackbits(np.frombuffer(base64.b85decode(text), np.uint8), bitorder="little")
    values = flat.reshape(-1, bits) << np.arange(bits, dtype=np.uint8)
    return values.sum(axis=1, dtype=np.uint8).reshape(-1, width)


def _parity(width: int) -> NDArray[np.uint8]:
    numbers = np.arange(1 << width, dtype=np.uint8)
    return np.unpackbits(numbers[:, None], axis=1).sum(axis=1, dtype=np.uint8) & 1


# Eight signs from seven bits: the eighth makes the number of minus signs even. [128] bytes, bit i for weight i.
EVEN_SIGNS = np.arange(128, dtype=np.uint8) | (_parity(7) << 7)

IQ2_XXS = _unpack(
    8,
    2,
    (
        "000621po*D3IGuR6aXLqA^<1=DgZ$ML;z3#SO8%FWB`Bwf&hvDq5uH_1OX5M6#+m2gaMcV00II6A_9T}0R#jD5CkCvBm_VNLIg+zU<82#ganWTqy"
        "zv30tE;KAO%JRX$61<kp&3`5C%X7ga)Jr00;#L2nZAiC<s9aL<mp_QV56$1PMS10tyrg0T2Wb5D*~{KoDRMgb<Jrl@I_C2oWF=P!U=YfDt4TMG^o"
        "M2oxX`B@{^%fD{-NVif=u78U^*1Q-w)Kp24-"
        "02u`tpczpb03ZS&3Lr!vVIY7Yf*>g&NFe|s0wMt<1SAk7KqOWq03|^sWF?R$2q+*Zlqf_h0YC&m5I`6}AwVQRKtM=9RzP4tfk1>nkU#)IAVFb4fI"
        ")>p0YVT$NJ3UZXhHx)2t*)6fJB)@5=A6M07d~w1V|7_KuASM07+O$VM&5XMM{uL08j`}5l|UWAW(o%h)@JkLQ$kqky4OUl2i&+0ajF209X-"
        "N8CYakKv@V{1Yi(gKwxNK0AW>O7-"
        "C>z0AvMZ5M>f&gk?f#0DuC33V=a?f`9~p7=b{65rP4P1cVTT6@);9V1xjLMun7x35Gz1V1@#S1c?!f1dtGrB#=Omp^z4lfRRO#0F)w>M3hmLftVn"
        "f0-#W!g`f$c0HPSAP^bi{"
    ),
)
IQ2_XS = _unpack(
    8,
    2,
    (
        "000621po*D3IGuR6aW?g82}&vA^;@-C;&kKL;ywrNdQm)QUFx|SO8%FWB`Bwf&hg8hyalQlmM9kpa1~@1OWyC2>}oR5&;zf7y%jqAps--KmkGlMF"
        "B_wQ2|r|U;$_WfdPa8kO2S!0s;jB2m%oT6apXuK>|bqPy$r~fC7pF0R#jD1_TKN5Cjqg6$BUrAp|4@Km<YrMFdC$Q3O;3Rs>)KfdqsEkOTk)0tE#"
        "H2n7)Z6a^p!K?OtwPz7NHfCT{t1O^ZWCI&zTLI#8e00;sI1qcWT3J4Jh6bK*)B?v(XL<mp_SO|a!pa`l60SN>N5D7pDfeDET016-"
        "qC<>Mepb7yH1P}%g2@ntv5)c&-7!V;4BoIIlLJ&m|NDxsFR1jbgY7l`Cgb<Jr01*Na1rZ1l5fKy-AQ3?kL=jLCfDx1tmJtCG1QG@k5E4KVU=jcn0"
        "u%)l2ow<%6civ7K@>z3Nfb~NWE6lD0Tl!l5EVcb02UM$NfrSZ1Q-w)5*R=jR2YUB02u`tW*Jc$sTu$v0w4t-2p|d|5g-&GARs{?L?BQgfFPhC0U-"
        "n-"
        "5FtPzNFik*03sqHfFh_O0VD(@5F{xiKqLSqK_yZpnI!=x8YZSD04NA33Me2bRVaukq9|x7kSPc%AS!|?h$@OI0YC&m20#fw5I_<@6+jq3AwVQRKt"
        "Mu3ML<YEN<dLSR6t-"
        "rWk7*Igg}r$06_vl1wjZw5kV9|AVEPvL_ttNfI)>pqCo*d1VRu(5<)3LKtcdS0z?Hw2t*M?6hs+BAVfh#L_|<TfJBr;0YwBw5Je<KKt-BG07eQ%L"
        "`G0X0Z0T$5J*5sMMzXgVn_f<5lKWzP)TV?1WEu<0#F4|2v8AF6i^^gC{RIAL{LyrfKUNZ1W^!C6;VJ@LQw!xL{h3!0aOH35L6*lKvZB<fmESX096"
        "Q8fK`Z9Ay#Nsp;iD`6j(u6P*|B*8d*SDLRp1c0bm4R5MV%HRA6FYhG3~+0AVCzN@9{?0Av<q5M@ARMP;OA0cdJyC20m~RBB>s0DuC31%L>E5r7nc"
        "Ab=`>L4ZVnP=J7df`F)is(=B31c3&D5P?8}QGr>30D>TbfP#X8pn|A^0fYpE5QGwh6@);9V1$W;0EI+_rG*%VYK8!a2#6(!T8My%f{3Vy28kkyfQ"
        "pEUmWrr~0gwcc5RgESR*-~{0Ffe*WRX^qiIM=61(ZaTP?T7dDV30wl9fT0QJAKfNtqRzV447+0-y+>3ZNjMDxjdCQK4C(rlA0$0-"
        "^|_Dx!d*prSyem84~+n5GJ-AgCg!D5#*QsHg;~gsFz9D5@%|k*cby"
    ),
)
IQ2_S = _unpack(
    8,
    2,
    (
        "000621po*D3IGuR6aW?g82}&vA^;@-C;&kKL;ywrNdQm)QUFx|SO8%FWB_IWX#ju#f&hg8hyalQlmMUrr2wh`0RaR71_22H5CIYa6#*ClAps--Km"
        "kGlMFB_wQ2|r|RsmT7U;$+TXaRu%gaMENk^z+gp#h`;00II61p){H5dstfAOb1^K>|bqMgmC!Py$r~fC7aAiUO1Zq5=T~1Ox^I2?P)X5(E_l7z7~"
        "%Bm^b|DFi?SLIgzwNCZj*Q3O;3Rs>lDU<6_WWdwl)gan2Ji3E@Yl?0dsp#-"
        "D^00jaC1qBEN3I!1b6a^Lq83iB(B?Tx2K?OtwMg>U)Pz6#2RRvfDVFhFbfCYjDg$0NOkp+|mpalU21O^5M2?h`b6$U^CMFvO)Q3g~7U<QE(ga(iX"
        "00;sI1qcWT5eO6r76=&#AP6N0DhNRcL<mL*NeEB~QV3NDSO{SVWC(x=g$R@gst5rI1PKrc5(yOv7zrT>KnX<&NC{C1R0&`SfeDZa016Qb6bd2=C<"
        "-bHPzsp}0T2Wb1`r7l5D*d&6%ZH@ArK@GCJ;anLJ&m|NDxsFR1j7WSrA|lVi08zXb^!Agb;=hkPwv+m=K{5q!0iR0ucof2oVYq5fKy-77-"
        "Z{AQ2)FB@rkQK@mg|MiEI7P!UoQRS{SbVG(2zfDwWbg%OAmkr9*;0TKif2@((z6%rv5BoaUpMG{dGR1$#_gc6Vv02Bfg1r!Jr5fl^@78Ds2AQUAO"
        "C=@{yL=;98Nfb~NQWRAbSQKFtWE6lDf)s@mh!l|&loX&80Tl!l1{Dbv5ET*?6%`m2Ar&MQKovq2MHNUDQ594bU=@KCgcXn#02T!n2o@0*6c!*BK^"
        "8<7P!@m|sulql1Q-Sw2^bI<6&M&8As9dyLKsCDNElHVR2X0wff$4s02u-q1sMn#5g8O2AQ?d!L>W*SX&Is!1R4+;KpIvW03ZS&1t16@5g-"
        "&G79bfQARr|mDj-"
        "21L?BQgQXo|zWFUYbiXfCAsvrR&1R)S15+M~KAt68^LLo&VQ6W?zU?G7agdvb203r$^A|favDk4N8P$GyTiXx~Y0VD(@1|$h25F`~O7$hMiBqTs2"
        "LL@~bNF-4tR3u;|fh2?^kR$*l1tkb25hWBQASFR1L?uuqW+i|n0VV_{5GFt-StbA|1t<|H6evL`L?}=wiYTfm0VxD25Gj=@3MwKhWGaX%iYfs>1V"
        "9Er2|y4)5<nF|7(g08AwVQRCO|+yLO?}8NI*(JQ9x8cRzO)mU_fF(Wk7*Igg}r$l|Yz4p+KZS06_vl1wjZw5kV9|7C{+7AVDHQB|$+!L_tPDNkLF"
        "SQbAQgSV3VyWI=#If<c8rh(VD-ltG|D0YU^q5JD0{6+#$7Btk$!MM6kIQ9@KgU_yaHghBvB0z?Hw2t*1*5kwS37DO3DAVeZWB}6DhK}1AEMnp+OP"
        "()HhRYX`sVMJs^fJA~sg+z!%kwlb4phN*h1Vsi#2}KY^5=9k77)2pPBt<|)LPbSINJUXaR7GG#YDIxXghh}=07e2v1x5%)5k?e7AVxt(L`G0XfJU"
        "W80Z0T$2}lq~5=a$D7)T*VBuGF=LP$kONJvpgR7hY*gh-"
        "G`07(K#1xW}=5lIwDAW1<<L`hIdfJv4~0ZIf)5K2Hw08j!@1yBf35l|FR7El>bAW$MuB~U0(K~O|cMo>vmP*74(RZv(^VNhgHfKY-^g;0o4kx-OS"
        "0Z{}|22lx75K$6Q6;T*bAyFhzKv6<bMNvpmQBhP;U{Qflgi(-D08#}~2vQMJ6jC5kK~h9gP*Q19fKmZe1XKo82~-"
        "eN5>ypb7*rutBve3DLR3XmNK{c&R8(M8fmDQ4kW>Iw0#yZ72vreP6jdNqK~+RmP*s3c0agT75LPBuKvn=)0$2rD2v`wV6j&fwL0CjsP*_@6fLH-"
        "p1X&PSKv@7<8Cr!}s9FJF1YibW5MUBu6<`=(Az&n6Kww2+NMKQ5RA69WgkX?h0AT`Q1z`wb5n&WzAYnmaL}5^2fMJ<o1Y!_kKw?&6p<)1J1!M?h5"
        "o8o(AY?&gL}XB8fMfw>1Z5CqKxIm0Xl0UR0A`eC0cZqh5NKs+m}mfLDrrJ$p=tnt0)Pd82!IiQ6o46kAb=%+L4ZVnP=Hc^Re)H4VSs>ug@BQOlz;"
        "(&1c3>G5P=eb6@eImA%P@;K!HMmMS)0xQGrx}fq{g9kb$Xz0D=XA3W5=W6oNs5M1oL)0fYpE280QO5QGwh6@(asA%sALLWD(xNQ6;@RD@uJfrNyF"
        "kc0q*0)+*I2!#=a6onv#L4`zxP=$bniiH7&1cnfXDTY9X0Eh*M5r`CsL5M_%P>7<40f_{OK#66EB8pgwT8e^-"
        "qKW~K1ds`k5Rej(6_6N^B#=OmLXbs}NRUyGRFGhhfslldkdOe81(6Yv6p=xZM3GRDT9E;g1d<SvK$51C0F(lh1(XPs5tI~^Ae2FrM3hjJfRvV$0h"
        "I)m5S2icn3bWG0G39UWR?M#1eg$*CYV5&sh9wnNtsfakeUFX1)vI`6rduYDxg82M4(WhqM)jvK%r%!0-_3{BBCgwDx!j-"
        "h@y(3sG<R+1f&q8K%|MJq@)0)8KqIC3aBWkqNr4<hN%du3aTKgBC05=h^nfp"
    ),
)
IQ3_XXS = _unpack(
    4,
    3,
    (
        "03ZMakN^wt01zMn86W~X&;vm*1W2F+QBVa~pao&T26zAnf<Op~011+i37hZ<sqhND5DdqF49ZXq_^=QkK@u;q6Fm_WN1+vJ(HXRX9L(Vy;}IVLG9"
        "U<|AQ3Vl7@{E@av~@KBtnuTP$DIPGAM|mD3O9Gx&kc10xj8MF7^^I1%onBLp5fTH-#fT-~&Jclt2pvK@wy^86-"
        "kMG(<&&L`oDzSTsj>ghzlRNQv}FkR(Z;1WK(GOvuDc_{2{gwNgWMRbj<f!8KgYRbByxU<wvt6NX|nrei=RWKfo6WM*c8HfV@eX{x4c$+m46cXB!h"
        "bVet2ZO3??H+$O$e+2k|9r%GO_=0>0iJu6HuxN|NSdIjlk~CSBV~Ll=iJZ!boeCPFI0~djYNc(;sG6#)!n&>qJFyq5vqGD-s7t-"
        "#OTi>;!ZaMkas0@%jLqIm(nYP-n?2moJ>Ug?;0UhaDsJUquIQz%>cHOY+Yav$AM!vi^i+@e"
    ),
)
IQ3_S = _unpack(
    4,
    3,
    (
        "01yBIPyh#j012P~4B!9|5CIji0U#g(C2#^MumUh313AD0KL7+lAOu8!1WC{YP%s5okOf^p260dadH@K4PzZ;B2#eqdkx&VkzzL#I3a5|?tAGo;Fb"
        "v7i4A3AA*{}`XKo01j4)>4`{QwXP@emO~5gGv!Basp~ArwRb6;fdpTM-szaTa#57lx4-i;)?sksH7v9K-"
        "<~(qSFjfgbDuAORvE1cD$5vLFreAP^!U8NwkR!XhpbBRT>kK{6ypf+S25C0Md0VS*-"
        "Vf+v0gD2mc3j{+%_qA8#<Dy;%5x)LnJaxBQQEYWf;*upL0A}{zdFa@J943jY%BQhp~GAt7`NV7CigEd-{HjqO(mqR+H6FkF%JjxS2-"
        "4j0YgFgTiKm$}j2ZTTh#6S)dK@)UA7^FcVG(shWLMn7aIJ84O1VloFL`(EUQdC7*#6@D1Mu9{~hZISZgh`(iN~`orxx`DrBuvGWOwvS6*|bgKgii"
        "JpPzME36Qxld6;e9YQ$&?iQuS3}wN`iqSb}v}k=0tURb0tsUD!2V=p|qYwqOnRU=o&L8`fbWMq($HVl$RwK{jMX#$-"
        "`8Wnczpdgf<<rf86+X`F^?!G>(i7H!jZZP*rW<92TCwr>NMa1JMN8K-"
        "hEM{_}kbV^rsT1R$nw|9;gdcik*&?kM}2Y>{qfDlN57pQ?Dh=MpMgh!Z!ODKg{*o9-"
        "5hHV&#gNTTY7>Sz*imxb(xJZo2xQx&!joH|Z04b0Z`H>)*lSO%yQ7M;;$(gW;oXv@y<C&fUil7WCp&&}4C#s@0%A-"
        "L#q(!QvQL3eS3aE)XshH}it17I=imca4uIXB@`x>wW3$Yq&vPx^UX}h+fE4;)jy$QU)4V=Ln48uSS#aB$nip<HP+{&_y%fQUc(G1QNJ<>7_)I-"
        "hHa9!A-o!rX}-~@i)5H8^!4&p2><3gU~R6gcq9_WOQ=#C!gn4apwuI=5v?g3x$3lH%qFZE(C_?Zv<"
    ),
)
